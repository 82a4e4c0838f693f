//! Every setting, declared once: flags, TOML file and help follow from one table.

/// The settings in force. Names are nsqd's where the thing is the same; durations and sizes say their unit.
#[derive(Clone, Debug)]
pub struct Settings {
    // node
    pub data_path: String,
    pub tcp_address: String,
    pub http_address: String,
    pub broadcast_address: String,
    pub shards: u16,
    pub partitions: u16,
    pub max_connections: u64,
    // limits of the protocol
    pub max_msg_size: u64,
    pub max_body_size: u64,
    pub max_rdy_count: u64,
    pub msg_timeout_ms: u64,
    pub max_msg_timeout_ms: u64,
    pub max_req_timeout_ms: u64,
    pub max_heartbeat_interval_ms: u64,
    /// Twice the heartbeat interval a client has when it asks for none.
    pub client_timeout_ms: u64,
    pub max_output_buffer_size: u64,
    pub max_output_buffer_timeout_ms: u64,
    /// Out-of-order confirmed intervals of a channel before it stops reading on.
    pub max_confirm_win: u64,
    // memory, per core
    /// Bytes of publishes that wait for the disk, per core; above it sockets are not read.
    pub max_pub_waiting_size: u64,
    /// How long a publish may wait for room before the client hears E_PUB_TOO_MUCH_WAITING.
    pub pub_waiting_timeout_ms: u64,
    /// Verified runs of the log that laggards share, per core.
    pub read_cache_bytes: u64,
    /// Recent batches kept for consumers at the end, per core.
    pub tail_cache_bytes: u64,
    // disk
    pub journal_bytes: u64,
    /// nsqd's max-bytes-per-file: size of a segment.
    pub max_bytes_per_file: u64,
    /// Batches of at least this size go straight to their segment.
    pub direct_bytes: u64,
    /// Bytes of a partition that wait for their segment before they are written there.
    pub flush_bytes: u64,
    /// A FIN is durable after this at the latest.
    pub fin_sync_interval_ms: u64,
    pub retention_ms: u64,
    pub retention_bytes: u64,
    pub scrub_bytes_per_second: u64,
    // executor
    pub stall_log_ms: u64,
    pub spin_before_park_us: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            data_path: String::new(),
            tcp_address: "0.0.0.0:4150".into(),
            http_address: "0.0.0.0:4151".into(),
            broadcast_address: String::new(),
            shards: 0,
            partitions: 1,
            max_connections: 0,
            max_msg_size: 1024 * 1024,
            max_body_size: 5 * 1024 * 1024,
            max_rdy_count: 2500,
            msg_timeout_ms: 60_000,
            max_msg_timeout_ms: 15 * 60_000,
            max_req_timeout_ms: 60 * 60_000,
            max_heartbeat_interval_ms: 60_000,
            client_timeout_ms: 60_000,
            max_output_buffer_size: 64 * 1024,
            max_output_buffer_timeout_ms: 30_000,
            max_confirm_win: 500,
            max_pub_waiting_size: 32 * 1024 * 1024,
            pub_waiting_timeout_ms: 3_000,
            read_cache_bytes: 32 * 1024 * 1024,
            tail_cache_bytes: 16 * 1024 * 1024,
            journal_bytes: 64 * 1024 * 1024,
            max_bytes_per_file: 128 * 1024 * 1024,
            direct_bytes: 128 * 1024,
            flush_bytes: 1024 * 1024,
            fin_sync_interval_ms: 100,
            retention_ms: 0,
            retention_bytes: 0,
            scrub_bytes_per_second: 4 * 1024 * 1024,
            stall_log_ms: 100,
            spin_before_park_us: 0,
        }
    }
}
