//! memspill-agent
