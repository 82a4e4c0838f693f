//! The NSQ V2 protocol.
