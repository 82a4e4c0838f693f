//! Topic and channel names: NSQ's rule, 1 to 64 characters of `[.a-zA-Z0-9_-]`, then perhaps `#ephemeral`.

use std::{fmt, ops::Deref, sync::Arc};

const NAME_LEN_MAX: usize = 64;
const EPHEMERAL: &str = "#ephemeral";

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to 64 characters of . a-z A-Z 0-9 _ - (a suffix #ephemeral counts too)")]
pub struct NameError;

macro_rules! name {
    ($name:ident, $what:literal) => {
        #[doc = concat!("The name of a ", $what, ", known to be valid. Cheap to clone.")]
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(name: &str) -> Result<Self, NameError> {
                if is_valid_name(name) { Ok($name(name.into())) } else { Err(NameError) }
            }

            /// Gone when its last user leaves.
            pub fn is_ephemeral(&self) -> bool {
                self.0.ends_with(EPHEMERAL)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

name!(TopicName, "topic");
name!(ChannelName, "channel");

/// No name that a client may give.
const TOPIC_PAUSE: &str = "#paused";

impl ChannelName {
    /// Name of the cursor that marks where a topic was paused: it is stored and replicated as a channel's, and is none.
    pub fn topic_pause() -> Self {
        ChannelName(TOPIC_PAUSE.into())
    }

    pub fn is_topic_pause(&self) -> bool {
        &*self.0 == TOPIC_PAUSE
    }

    /// A name that a node wrote: a channel's, or the pause's.
    pub fn of_cursor(name: &str) -> Result<Self, NameError> {
        if name == TOPIC_PAUSE { Ok(Self::topic_pause()) } else { Self::new(name) }
    }
}

/// nsqd's rule: the whole name, suffix included, has 1 to 64 characters.
pub fn is_valid_name(name: &str) -> bool {
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return false;
    }
    let stem = name.strip_suffix(EPHEMERAL).unwrap_or(name);
    !stem.is_empty() && stem.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_nsqs_rule() {
        for good in ["a", "a.b_c-D9", "x#ephemeral", &"n".repeat(64)] {
            assert!(is_valid_name(good), "{good}");
        }
        for bad in ["", "a b", "a/b", "#ephemeral", "a#b", "a#ephemeral#ephemeral", "ä", &"n".repeat(65)] {
            assert!(!is_valid_name(bad), "{bad}");
        }
        assert!(ChannelName::new("c#ephemeral").unwrap().is_ephemeral());
    }

    #[test]
    fn nobody_names_a_channel_like_the_pause_of_a_topic() {
        let pause = ChannelName::topic_pause();
        assert!(pause.is_topic_pause() && !pause.is_ephemeral());
        assert_eq!(ChannelName::new(&pause), Err(NameError));
        assert_eq!(ChannelName::of_cursor(&pause), Ok(pause));
        assert_eq!(ChannelName::of_cursor("c"), ChannelName::new("c"));
        assert_eq!(ChannelName::of_cursor("a#b"), Err(NameError));
    }
}
