//! Mutex and RwLock with std's interface. Waiting is in virtual time; std's lock inside only guards the data,
//! and is always free when its turn comes.

use crate::locks::{LockId, Mode};
use crate::world;
use std::any::type_name;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, TryLockError, TryLockResult};

const FREE: &str = "whoever holds a lock in virtual time holds its data";

pub struct Mutex<T> {
    id: LockId,
    data: std::sync::Mutex<T>,
}

pub struct MutexGuard<'a, T> {
    id: LockId,
    data: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex { id: world::make_lock(size_of::<T>()), data: std::sync::Mutex::new(value) }
    }
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        world::lock(self.id, Mode::Alone, type_name::<T>(), Location::caller());
        Ok(self.guard())
    }
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        if !world::try_lock(self.id, Mode::Alone, type_name::<T>(), Location::caller()) {
            return Err(TryLockError::WouldBlock);
        }
        Ok(self.guard())
    }
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { id: self.id, data: Some(self.data.try_lock().expect(FREE)) }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T> Drop for Mutex<T> {
    fn drop(&mut self) {
        world::drop_lock(self.id);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.data.as_ref().expect("held until the guard is dropped")
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_mut().expect("held until the guard is dropped")
    }
}
impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.data = None;
        world::unlock(self.id, Mode::Alone, type_name::<T>());
    }
}

pub struct RwLock<T> {
    id: LockId,
    data: std::sync::RwLock<T>,
}

pub struct RwLockReadGuard<'a, T> {
    id: LockId,
    data: Option<std::sync::RwLockReadGuard<'a, T>>,
}

pub struct RwLockWriteGuard<'a, T> {
    id: LockId,
    data: Option<std::sync::RwLockWriteGuard<'a, T>>,
}

impl<T> RwLock<T> {
    pub fn new(value: T) -> RwLock<T> {
        RwLock { id: world::make_lock(size_of::<T>()), data: std::sync::RwLock::new(value) }
    }
    #[track_caller]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        world::lock(self.id, Mode::Shared, type_name::<T>(), Location::caller());
        Ok(RwLockReadGuard { id: self.id, data: Some(self.data.try_read().expect(FREE)) })
    }
    #[track_caller]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        world::lock(self.id, Mode::Alone, type_name::<T>(), Location::caller());
        Ok(RwLockWriteGuard { id: self.id, data: Some(self.data.try_write().expect(FREE)) })
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

impl<T> Drop for RwLock<T> {
    fn drop(&mut self) {
        world::drop_lock(self.id);
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.data.as_ref().expect("held until the guard is dropped")
    }
}
impl<T> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.data = None;
        world::unlock(self.id, Mode::Shared, type_name::<T>());
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.data.as_ref().expect("held until the guard is dropped")
    }
}
impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_mut().expect("held until the guard is dropped")
    }
}
impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.data = None;
        world::unlock(self.id, Mode::Alone, type_name::<T>());
    }
}
