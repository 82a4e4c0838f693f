//! The new topics whose channels are being looked up, and the channels of them that were deleted here meanwhile.

use crate::base::{ChannelName, TopicId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

type Deleted = RefCell<BTreeSet<ChannelName>>;

/// Questions under way, by topic.
#[derive(Debug, Default)]
pub struct OpenQuestions(BTreeMap<TopicId, Weak<Deleted>>);

/// Question about one topic; it exists from its asking until its answer is carried out.
#[derive(Debug)]
pub struct Question(Rc<Deleted>);

impl OpenQuestions {
    pub fn ask(&mut self, topic: TopicId) -> Question {
        self.0.retain(|_, question| question.strong_count() > 0);
        let question = Question(Rc::default());
        self.0.insert(topic, Rc::downgrade(&question.0));
        question
    }

    /// A partition has lost the channel. The others lose it as well, or have lost it.
    pub fn channel_gone(&mut self, topic: TopicId, channel: &ChannelName) {
        if let Some(question) = self.0.get(&topic).and_then(Weak::upgrade) {
            question.borrow_mut().insert(channel.clone());
        }
    }
}

impl Question {
    pub fn is_deleted(&self, channel: &ChannelName) -> bool {
        self.0.borrow().contains(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_knows_what_was_deleted_while_it_is_under_way() {
        let (mut asked, name) = (OpenQuestions::default(), |name| ChannelName::new(name).expect("it is valid"));
        let (one, two) = (TopicId([1; 16]), TopicId([2; 16]));
        asked.channel_gone(one, &name("c"));
        let question = asked.ask(one);
        assert!(!question.is_deleted(&name("c")), "that was before");
        asked.channel_gone(two, &name("c"));
        assert!(!question.is_deleted(&name("c")), "that is another topic's");
        asked.channel_gone(one, &name("c"));
        assert!(question.is_deleted(&name("c")) && !question.is_deleted(&name("d")));
        drop(question);
        asked.channel_gone(one, &name("d"));
        let _question = asked.ask(two);
        assert_eq!(asked.0.len(), 1, "nothing is kept of a question that was answered");
    }
}
