//! memspill-pager
