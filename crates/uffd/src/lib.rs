//! memspill-uffd
