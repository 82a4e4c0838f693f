//! Waking tasks of one executor from another task of it. Lives on one core; never crosses threads.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A flag with one waiter: the drive loop sleeps on it, whoever has something for the loop sets it.
#[derive(Default)]
pub struct LocalEvent {
    set: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

impl LocalEvent {
    pub fn set(&self) {
        if !self.set.replace(true)
            && let Some(waiter) = self.waiter.take()
        {
            waiter.wake();
        }
    }

    pub fn is_set(&self) -> bool {
        self.set.get()
    }

    /// Returns when the event is set (at once if it is already), and clears it.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.set.replace(false) {
                return Poll::Ready(());
            }
            self.waiter.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

/// Any number of tasks that wait for the next change of something.
#[derive(Default)]
pub struct Waiters {
    changes: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Waiters {
    pub fn wake_all(&self) {
        self.changes.set(self.changes.get() + 1);
        // taken out first: a waker may run code that waits again
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns at the next [`Self::wake_all`].
    pub async fn changed(&self) {
        let seen = self.changes.get();
        poll_fn(|cx| {
            if self.changes.get() != seen {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
