//! Tasks of one executor that wait for another task of it. Lives on one core; never crosses threads.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Tasks that wait for the next change of a value.
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
