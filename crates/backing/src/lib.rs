//! memspill-backing
