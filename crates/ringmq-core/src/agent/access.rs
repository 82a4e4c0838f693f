//! Whether the store answers this node and admits it. The node's lease depends on both.

use super::Purpose;
use crate::metadata::request::Failure;
use std::mem::{Discriminant, discriminant};

/// Reason why the store does not keep up the node's session. Without a change the lease ends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreTrouble {
    /// No member of the store answers, or none in time.
    #[error("the metadata store does not answer: {0}")]
    Away(String),
    /// The store answers and refuses, for example the node's login.
    #[error("the metadata store refuses: {0}")]
    Refused(String),
}

impl From<&Failure> for StoreTrouble {
    fn from(failure: &Failure) -> StoreTrouble {
        match failure {
            Failure::Refused(why) => StoreTrouble::Refused(why.clone()),
            Failure::Unreached(why) | Failure::Unknown(why) => StoreTrouble::Away(why.clone()),
        }
    }
}

/// Outcome of the last requests on which the node's session depends.
#[derive(Debug, Default)]
pub(super) struct Access {
    /// The trouble, and the purpose of the request that met it.
    trouble: Option<(Discriminant<Purpose>, StoreTrouble)>,
}

impl Access {
    pub fn trouble(&self) -> Option<&StoreTrouble> {
        self.trouble.as_ref().map(|(_, trouble)| trouble)
    }

    pub fn failed(&mut self, purpose: &Purpose, failure: &Failure) {
        if purpose.is_of_session() {
            self.trouble = Some((discriminant(purpose), failure.into()));
        }
    }

    /// Takes in an answer. A store that answers is not away. A refusal lasts until the same request succeeds, or the node is registered:
    /// the store may admit a node to read alone.
    pub fn answered(&mut self, purpose: &Purpose) {
        let is_over = |(of, trouble): &(_, StoreTrouble)| {
            *of == discriminant(purpose)
                || matches!(trouble, StoreTrouble::Away(_))
                || matches!(purpose, Purpose::Register { .. })
        };
        if self.trouble.as_ref().is_some_and(is_over) {
            self.trouble = None;
        }
    }
}
