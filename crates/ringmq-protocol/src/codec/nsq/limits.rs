//! Limits of the protocol that clients are told, taken from the settings once and shared by every session.

use crate::codec::nsq::layers::Terms;

#[derive(Clone, Debug)]
pub struct Limits {
    /// Told in the answer to IDENTIFY.
    pub version: String,
    pub max_msg_size: usize,
    pub max_body_size: usize,
    pub max_rdy_count: u32,
    pub msg_timeout_ms: u64,
    pub max_msg_timeout_ms: u64,
    pub max_req_timeout_ms: u64,
    /// Default for a client that asks for none.
    pub heartbeat_interval_ms: u64,
    pub max_heartbeat_interval_ms: u64,
    pub max_output_buffer_size: u64,
    /// Default for a client that asks for none.
    pub output_buffer_timeout_ms: u64,
    pub min_output_buffer_timeout_ms: u64,
    pub max_output_buffer_timeout_ms: u64,
    /// TLS terms; `None`: no client gets TLS.
    pub tls: Option<Terms>,
    pub snappy: bool,
    pub deflate: bool,
    pub max_deflate_level: u8,
    /// Consumers of a channel; 0: no limit.
    pub max_channel_consumers: u64,
    /// A client has to say AUTH before it publishes or subscribes.
    pub auth_required: bool,
    /// A client has to have TLS before any command but IDENTIFY.
    pub tls_required: bool,
    /// Unsent bytes above which no further message is handed to a connection.
    pub output_full_bytes: usize,
    /// Unsent bytes above which nothing more is read from a connection: room for one message more than full, so that a
    /// consumer's FINs are read while its messages wait.
    pub output_stop_bytes: usize,
    /// Replies that may be outstanding before nothing more is read.
    pub replies_max: usize,
    /// Bytes that are missing of a body from which on they are received to where they stay.
    pub in_place_min: usize,
    /// True if the native port has no TLS. With TLS the received bytes are decrypted first.
    pub native_is_plain: bool,
}
