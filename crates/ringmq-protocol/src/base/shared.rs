//! A value that all cores read and that may be replaced while they run, such as the terms of TLS.

use std::sync::{Arc, Mutex, PoisonError};

/// A shared value that can be replaced as a whole. Clones share it. A holder of the former value keeps that.
#[derive(Debug)]
pub struct Shared<T>(Arc<Mutex<Arc<T>>>);

impl<T> Shared<T> {
    pub fn new(value: T) -> Self {
        Shared(Arc::new(Mutex::new(Arc::new(value))))
    }

    pub fn get(&self) -> Arc<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the value by the other one's.
    pub fn replace_by(&self, other: &Self) {
        let value = other.get();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_see_the_new_value_and_who_took_the_old_one_keeps_it() {
        let shared = Shared::new(1);
        let (clone, taken) = (shared.clone(), shared.get());
        shared.replace_by(&Shared::new(2));
        assert_eq!((*taken, *clone.get(), *shared.get()), (1, 2, 2));
    }
}
