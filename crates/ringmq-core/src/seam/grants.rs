//! Permissions of a client by an auth server: topics and channels by expression, publishing and subscribing apart.

use super::expression;
use regex::Regex;
use serde::Deserialize;
use std::time::Duration;

/// The answer about one client.
#[derive(Debug)]
pub struct Grants {
    pub identity: String,
    pub identity_url: String,
    /// Time after which the server is asked again.
    pub ttl: Duration,
    pub authorizations: Vec<Authorization>,
}

#[derive(Debug)]
pub struct Authorization {
    topic: Regex,
    channels: Vec<Regex>,
    may_publish: bool,
    may_subscribe: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AuthAnswer {
    ttl: Option<i64>,
    authorizations: Option<Vec<AuthorizationJson>>,
    identity: Option<String>,
    identity_url: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AuthorizationJson {
    topic: Option<String>,
    channels: Option<Vec<String>>,
    permissions: Option<Vec<String>>,
}

impl Grants {
    /// Parses the server's answer. The error is for the log.
    pub fn parse(json: &[u8]) -> Result<Grants, String> {
        let answer: AuthAnswer = serde_json::from_slice(json).map_err(|e| format!("the answer has an unexpected form: {e}"))?;
        let entries = answer.authorizations.unwrap_or_default();
        let authorizations = entries.into_iter().map(Authorization::new).collect::<Result<_, _>>()?;
        let ttl = answer.ttl.unwrap_or_default();
        let Some(seconds) = u64::try_from(ttl).ok().filter(|seconds| *seconds > 0) else {
            return Err(format!("the answer's ttl is {ttl}, and must be above 0"));
        };
        Ok(Grants {
            identity: answer.identity.unwrap_or_default(),
            identity_url: answer.identity_url.unwrap_or_default(),
            // so long that it is for ever, and no sum with it overflows
            ttl: Duration::from_secs(seconds.min(u32::MAX as u64)),
            authorizations,
        })
    }

    /// True if the client may publish to the topic (an empty channel), or subscribe to the channel.
    pub fn allow(&self, topic: &str, channel: &str) -> bool {
        self.authorizations.iter().any(|authorization| authorization.allows(topic, channel))
    }
}

impl Authorization {
    fn new(entry: AuthorizationJson) -> Result<Authorization, String> {
        let permissions = entry.permissions.unwrap_or_default();
        if let Some(unknown) = permissions.iter().find(|p| !["subscribe", "publish"].contains(&p.as_str())) {
            return Err(format!("the answer gives the unknown permission {unknown:?}"));
        }
        let compiled = |what: &str, text: &str| {
            expression::compile(text).map_err(|e| format!("the answer's expression {text:?} for a {what} cannot be used: {e}"))
        };
        let channels = entry.channels.unwrap_or_default();
        Ok(Authorization {
            topic: compiled("topic", &entry.topic.unwrap_or_default())?,
            channels: channels.iter().map(|channel| compiled("channel", channel)).collect::<Result<_, _>>()?,
            may_publish: permissions.iter().any(|p| p == "publish"),
            may_subscribe: permissions.iter().any(|p| p == "subscribe"),
        })
    }

    /// True if an expression of both kinds is found in topic and channel. A publish has an empty channel name, which an expression must
    /// match, too.
    fn allows(&self, topic: &str, channel: &str) -> bool {
        let may = if channel.is_empty() { self.may_publish } else { self.may_subscribe };
        may && self.topic.is_match(topic) && self.channels.iter().any(|expression| expression.is_match(channel))
    }
}

#[cfg(test)]
mod tests {
    use crate::seam::grants::*;

    #[test]
    fn permissions_are_nsqds() {
        let grants = Grants::parse(
            br#"{"ttl":60,"identity":"me","identity_url":"http://me","authorizations":[
                {"permissions":["subscribe","publish"],"topic":"both","channels":[".*"]},
                {"permissions":["subscribe"],"topic":"^sub$","channels":["^c$"]},
                {"permissions":["publish"],"topic":"^pub$","channels":["x"]},
                {"permissions":["publish"],"topic":"^quiet$"}]}"#,
        )
        .unwrap();
        assert_eq!((grants.identity.as_str(), grants.ttl, grants.authorizations.len()), ("me", Duration::from_secs(60), 4));
        for (topic, channel, allowed) in [
            ("both", "", true),
            ("not-both-either", "", true), // searched for, not matched whole
            ("both", "c", true),
            ("sub", "c", true),
            ("sub", "cc", false),
            ("sub", "", false),
            ("pub", "", false), // its expression does not match the empty channel
            ("quiet", "", false),
            ("other", "c", false),
        ] {
            assert_eq!(grants.allow(topic, channel), allowed, "{topic} {channel}");
        }
    }

    #[test]
    fn an_expression_is_gos() {
        let grants = br#"{"ttl":60,"authorizations":[{"permissions":["publish"],"topic":"^\\Qa.b\\E$","channels":[".*"]}]}"#;
        let grants = Grants::parse(grants).unwrap();
        assert!(grants.allow("a.b", "") && !grants.allow("axb", ""));
    }

    #[test]
    fn a_wrong_answer_is_named() {
        for (json, what) in [
            (&b"nope"[..], "an unexpected form"),
            (br#"{"ttl":0}"#, "ttl is 0"),
            (br#"{}"#, "ttl is 0"),
            (br#"{"ttl":-1}"#, "ttl is -1"),
            (br#"{"ttl":1,"authorizations":[{"permissions":["admin"]}]}"#, "unknown permission \"admin\""),
            (br#"{"ttl":1,"authorizations":[{"topic":"("}]}"#, "for a topic cannot be used"),
            (br#"{"ttl":1,"authorizations":[{"channels":["[a"]}]}"#, "for a channel cannot be used"),
        ] {
            let error = Grants::parse(json).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let none = Grants::parse(br#"{"ttl":9,"authorizations":null,"identity":null}"#).unwrap();
        assert!(none.authorizations.is_empty() && !none.allow("t", ""));
    }
}
