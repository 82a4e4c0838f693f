//! A level-triggered event between tasks of one executor. A core's loop awaits it at the end of a turn. The waiter task and the tasks
//! that carry disk operations ring it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Cheap to clone; lives on one thread. One task awaits it.
#[derive(Clone, Default)]
pub struct Bell(Rc<Inner>);

#[derive(Default)]
struct Inner {
    rung: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Bell {
    pub fn new() -> Bell {
        Bell::default()
    }

    /// Ends the wait that is going on, or else the next one. Ringing twice is ringing once.
    pub fn ring(&self) {
        self.0.rung.set(true);
        if let Some(waker) = self.0.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Returns at once when it was rung since the last wait.
    pub async fn wait(&self) {
        poll_fn(|context| {
            if self.0.rung.replace(false) {
                return Poll::Ready(());
            }
            *self.0.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
