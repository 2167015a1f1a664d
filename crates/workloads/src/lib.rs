//! memspill-workloads
