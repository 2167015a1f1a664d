//! A reference-counted pointer whose count costs time: clones and drops by several CPUs pass its line around.
//!
//! What it does not do: coerce to trait objects by itself (only std's can); [`Arc::from_std`] takes one that
//! was.

use crate::lines::LineId;
use crate::world;
use std::ops::Deref;
use std::panic::Location;

pub struct Arc<T: ?Sized> {
    line: LineId,
    inner: std::sync::Arc<T>,
}

impl<T> Arc<T> {
    pub fn new(value: T) -> Arc<T> {
        Arc::from_std(std::sync::Arc::new(value))
    }

    pub fn try_unwrap(this: Arc<T>) -> Result<T, Arc<T>> {
        let line = this.line;
        // The count is looked at, and dropped if it is the last: one access, by the drop of `this`.
        let inner = this.inner.clone();
        drop(this);
        std::sync::Arc::try_unwrap(inner).map_err(|inner| Arc { line, inner })
    }
}

impl<T: ?Sized> Arc<T> {
    pub fn from_std(inner: std::sync::Arc<T>) -> Arc<T> {
        Arc { line: world::make_line(), inner }
    }
    pub fn ptr_eq(a: &Arc<T>, b: &Arc<T>) -> bool {
        std::sync::Arc::ptr_eq(&a.inner, &b.inner)
    }
    #[track_caller]
    pub fn strong_count(this: &Arc<T>) -> usize {
        world::read(this.line, Location::caller());
        std::sync::Arc::strong_count(&this.inner)
    }
}

impl<T: ?Sized> Clone for Arc<T> {
    #[track_caller]
    fn clone(&self) -> Arc<T> {
        world::write(self.line, Location::caller());
        Arc { line: self.line, inner: self.inner.clone() }
    }
}

impl<T: ?Sized> Drop for Arc<T> {
    fn drop(&mut self) {
        world::write(self.line, Location::caller());
    }
}

impl<T: ?Sized> Deref for Arc<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}
