//! SUBs that wait at the partition's core until their topic, or their channel that is being deleted, may be used again; and their
//! client's messages meanwhile.

use crate::base::{PartitionId, SubId, TopicId};
use crate::seam::message::SubRequest;

pub(super) struct ParkedSub {
    pub request: SubRequest,
    /// Credit that was lent meanwhile.
    pub credit: u32,
    /// Whether the client's output is full.
    pub blocked: bool,
}

impl ParkedSub {
    fn is_of(&self, sub: SubId, partition: PartitionId) -> bool {
        (self.request.sub, self.request.partition) == (sub, partition)
    }
}

#[derive(Default)]
pub(super) struct ParkedSubs {
    /// Waiting SUBs, in the order of their arrival.
    parked: Vec<ParkedSub>,
    /// True when some of them may go on.
    resumes: bool,
}

impl ParkedSubs {
    pub fn park(&mut self, request: SubRequest) {
        self.parked.push(ParkedSub { request, credit: 0, blocked: false });
    }

    pub fn get_mut(&mut self, sub: SubId, partition: PartitionId) -> Option<&mut ParkedSub> {
        self.parked.iter_mut().find(|s| s.is_of(sub, partition))
    }

    /// The client is gone, or leaves.
    pub fn forget(&mut self, sub: SubId, partition: PartitionId) {
        self.parked.retain(|s| !s.is_of(sub, partition));
    }

    /// The topic goes, and its clients end.
    pub fn forget_topic(&mut self, topic: TopicId) {
        self.parked.retain(|s| s.request.topic.id != topic);
    }

    /// Notes that some parked subscriptions may go on: all are tried again before the step ends.
    pub fn resume(&mut self) {
        self.resumes = true;
    }

    pub fn is_resuming(&self) -> bool {
        self.resumes
    }

    /// All parked subscriptions, if they are to be tried again.
    pub fn take_resuming(&mut self) -> Vec<ParkedSub> {
        if std::mem::take(&mut self.resumes) { std::mem::take(&mut self.parked) } else { vec![] }
    }
}
