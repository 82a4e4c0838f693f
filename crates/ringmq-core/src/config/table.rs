//! The table of settings. One row declares a setting: its field in [`Settings`], its default, and its row of [`TABLE`].

use super::TopicSettings;
use super::row::{Field, Setting, Unit};
use std::collections::{BTreeMap, BTreeSet};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Declares [`Settings`], its defaults and [`TABLE`] from one list of rows:
/// `field: type = default, unit(bounds), "flag", ["words for the default",] "description";`
macro_rules! settings {
    ($($group:literal { $(
        $field:ident: $type:ty = $default:expr, $unit:expr, $min:expr, $max:expr, $name:literal,
        $([$shown:literal],)? $about:literal;
    )* })*) => {
        /// The settings in force. Names are nsqd's where the thing is the same; a field's name says its unit.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $($( #[doc = $about] pub $field: $type, )*)*
            /// Settings of single topics: the `[topics.<name>]` tables of the file.
            pub topics: BTreeMap<String, TopicSettings>,
            /// Names of the settings that a flag or the file gave.
            pub given: BTreeSet<&'static str>,
        }

        impl Default for Settings {
            fn default() -> Self {
                Settings { $($( $field: $default, )*)* topics: BTreeMap::new(), given: BTreeSet::new() }
            }
        }

        /// Every setting, in the order of the help.
        pub static TABLE: &[Setting] = &[$($( Setting {
            name: $name,
            group: $group,
            unit: $unit,
            min: $min,
            max: $max,
            default_shown: { #[allow(unused_mut, unused_assignments)] { let mut shown = None; $( shown = Some($shown); )? shown } },
            about: $about,
            get: |settings| Field::get(&settings.$field),
            set: |settings, value| Field::set(&mut settings.$field, value),
        }, )*)*];
    };
}

settings! {
    "Node" {
        data_path: String = String::new(), Unit::Text, 0, 0, "data-path", ["the working directory"],
            "Folder of the journal and the topics, for one node at a time";
        import_nsqd: bool = true, Unit::Switch(&[]), 0, 0, "import-nsqd",
            "Import of an nsqd's backlog from the data path before the node serves; false leaves it in nsqd's files";
        tcp_address: String = "0.0.0.0:4150".into(), Unit::Address, 0, 0, "tcp-address",
            "Address for NSQ clients";
        http_address: String = "0.0.0.0:4151".into(), Unit::Address, 0, 0, "http-address",
            "Address for HTTP clients; empty: none";
        native_address: String = "0.0.0.0:4153".into(), Unit::Text, 0, 0, "native-address", ["0.0.0.0:4153; empty: none"],
            "Address for clients of the native protocol. Unless given, the port stays closed under the name `nsqd`, if 4153 is taken, \
             or where it would bypass the TLS or AUTH of NSQ clients";
        native_tls_cert: String = String::new(), Unit::Text, 0, 0, "native-tls-cert", ["empty: no TLS"],
            "PEM file of the certificate chain of the native port, which then speaks only TLS";
        native_tls_key: String = String::new(), Unit::Text, 0, 0, "native-tls-key", ["empty: no TLS"],
            "PEM file of the private key of --native-tls-cert";
        native_tls_client_ca: String = String::new(), Unit::Text, 0, 0, "native-tls-client-ca", ["empty: no client certificate"],
            "PEM file of CAs; a native client must show a certificate of one of them";
        native_tls_min_version: String = "1.2".into(), Unit::Word(&["1.2", "1.3"]), 0, 0, "native-tls-min-version",
            "Oldest version of TLS on the native port: 1.2 or 1.3";
        broadcast_address: String = String::new(), Unit::Text, 0, 0, "broadcast-address", ["the host's name"],
            "Address of this node for clients, told by nsqlookupds and /info";
        broadcast_tcp_port: u16 = 0, Unit::Count, 0, 65_535, "broadcast-tcp-port", ["0, that of tcp-address"],
            "TCP port of this node, told to nsqlookupds";
        broadcast_http_port: u16 = 0, Unit::Count, 0, 65_535, "broadcast-http-port", ["0, that of http-address"],
            "HTTP port of this node, told to nsqlookupds";
        lookupd_tcp_addresses: Vec<String> = Vec::new(), Unit::Addresses, 0, 0, "lookupd-tcp-address", ["none"],
            "host:port of an nsqlookupd at which the node registers its topics and channels; may be repeated. In the file a list, also \
             as nsqd's nsqlookupd_tcp_addresses";
        lookupd_http_address: String = String::new(), Unit::Text, 0, 0, "lookupd-http-address", ["empty: none"],
            "Address for nsqlookupd's HTTP API about the topics of the node or its cluster (docs/lookupd.md)";
        http_client_connect_timeout_ms: u64 = 2 * SECOND, Unit::Millis, 1, HOUR, "http-client-connect-timeout",
            "Time limit for connecting to an nsqlookupd's HTTP API, which names the channels of a new topic";
        http_client_request_timeout_ms: u64 = 5 * SECOND, Unit::Millis, 1, HOUR, "http-client-request-timeout",
            "Time limit for an nsqlookupd's answer";
        shards: u16 = 0, Unit::Count, 0, 1024, "shards", ["0, as many as there are CPUs"],
            "Cores, each with its own sockets, journal and partitions; may change at each startup";
        partitions: u16 = 1, Unit::Count, 1, 1024, "partitions",
            "Partitions of a topic that its first PUB or SUB creates";
        max_connections: u64 = 0, Unit::Count, 0, 10_000_000, "max-connections", ["0, as the limit of open files allows"],
            "Client connections; further ones are closed at once";
        max_topics: u64 = 10_000, Unit::Count, 0, 1_000_000, "max-topics",
            "Topics that the node creates on demand (0: no limit); further ones are refused";
        max_channels_per_topic: u64 = 10_000, Unit::Count, 0, 65_536, "max-channels-per-topic",
            "Channels of a topic (0: 65536); further ones are refused";
        mem_queue_size: u64 = 10_000, Unit::Count, 0, 1_000_000_000_000, "mem-queue-size",
            "Messages that wait in an ephemeral channel of a partition; the oldest ones beyond it are dropped. Durable channels have no \
             such bound";
        log_level: String = "info".into(), Unit::Word(LOG_LEVELS), 0, 0, "log-level",
            "Lowest level of logged lines: debug, info, warn, error or fatal. SIGHUP reads the file's value again";
        log_format: String = "text".into(), Unit::Word(&["text", "json"]), 0, 0, "log-format",
            "Form of log lines: text or json";
        log_prefix: String = String::new(), Unit::Text, 0, 0, "log-prefix", ["empty"],
            "Text before each log line; not with --log-format=json";
    }
    "Protocol limits" {
        max_msg_size: u64 = MIB, Unit::Bytes, 1, 63 * MIB, "max-msg-size",
            "Largest body of one message";
        max_body_size: u64 = 5 * MIB, Unit::Bytes, 1, 64 * MIB, "max-body-size",
            "Largest body of an MPUB, and of a command without messages";
        max_rdy_count: u64 = 2500, Unit::Count, 0, i32::MAX as u64, "max-rdy-count",
            "Most messages that a consumer may have in flight";
        msg_timeout_ms: u64 = MINUTE, Unit::Millis, 1, 30 * DAY, "msg-timeout",
            "Time from a delivery to the redelivery of an unfinished message; a consumer may ask for another. --max-msg-timeout is at \
             least as long";
        max_msg_timeout_ms: u64 = 15 * MINUTE, Unit::Millis, 1, 30 * DAY, "max-msg-timeout",
            "Longest message timeout that a consumer may ask for, or reach by TOUCH";
        max_req_timeout_ms: u64 = 30 * DAY, Unit::Millis, 0, 30 * DAY, "max-req-timeout",
            "Longest delay: a longer REQ is shortened, a longer DPUB refused. nsqd's default is an hour";
        max_heartbeat_interval_ms: u64 = MINUTE, Unit::Millis, SECOND, DAY, "max-heartbeat-interval",
            "Longest heartbeat interval that a client may ask for";
        client_timeout_ms: u64 = MINUTE, Unit::Millis, SECOND, HOUR, "client-timeout",
            "Silence after which a client without its own heartbeat interval is disconnected; its interval is half of it";
        max_output_buffer_size: u64 = 64 * KIB, Unit::Bytes, 64, 16 * MIB, "max-output-buffer-size",
            "Largest output buffer that a client may ask for";
        max_output_buffer_timeout_ms: u64 = 30 * SECOND, Unit::Millis, 0, DAY, "max-output-buffer-timeout",
            "Longest output_buffer_timeout that a client may ask for";
        output_buffer_timeout_ms: u64 = 250, Unit::Millis, 0, DAY, "output-buffer-timeout",
            "output_buffer_timeout for a client without its own; the node sends at the end of each turn anyway";
        min_output_buffer_timeout_ms: u64 = 25, Unit::Millis, 0, DAY, "min-output-buffer-timeout",
            "Shortest output_buffer_timeout that a client may ask for";
        max_channel_consumers: u64 = 0, Unit::Count, 0, 1_000_000, "max-channel-consumers", ["0, no limit"],
            "Consumers of a channel on this node; further ones are refused";
    }
    "TLS and compression of NSQ clients" {
        tls_cert: String = String::new(), Unit::Text, 0, 0, "tls-cert", ["empty: no TLS"],
            "PEM file of the certificate chain for HTTPS and for NSQ clients whose IDENTIFY asks for `tls_v1`";
        tls_key: String = String::new(), Unit::Text, 0, 0, "tls-key", ["empty: no TLS"],
            "PEM file of the private key of --tls-cert";
        tls_client_auth_policy: String = String::new(), Unit::Text, 0, 0, "tls-client-auth-policy", ["empty: none is asked for"],
            "Certificate that a client must show: `require` (any) or `require-verify` (of a CA of --tls-root-ca-file). Implies \
             --tls-required";
        tls_root_ca_file: String = String::new(), Unit::Text, 0, 0, "tls-root-ca-file", ["empty: those of the system"],
            "PEM file of CAs for clients' certificates (`require-verify`) and for HTTPS servers that the node asks";
        tls_required: String = "false".into(), Unit::Switch(&["tcp-https"]), 0, 0, "tls-required",
            "Refusal of plaintext: true (NSQ and HTTP), `tcp-https` (NSQ only) or false";
        tls_min_version: String = "tls1.2".into(), Unit::Word(TLS_VERSIONS), 0, 0, "tls-min-version",
            "Oldest version of TLS for NSQ clients: tls1.2 or tls1.3; tls1.0 and tls1.1 mean tls1.2";
        snappy: bool = true, Unit::Switch(&[]), 0, 0, "snappy",
            "Permission for clients to use snappy";
        deflate: bool = true, Unit::Switch(&[]), 0, 0, "deflate",
            "Permission for clients to use deflate";
        max_deflate_level: u64 = 6, Unit::Count, 1, 9, "max-deflate-level",
            "Highest deflate level of a client; a higher one is lowered";
    }
    "Who NSQ clients are" {
        auth_http_address: Vec<String> = vec![], Unit::List, 0, 0, "auth-http-address", ["none: nobody is asked"],
            "host:port or URL of a server that tells a client's permissions (AUTH); may be repeated";
    }
    "HTTP" {
        https_address: String = "0.0.0.0:4152".into(), Unit::Text, 0, 0, "https-address", ["0.0.0.0:4152; empty: none"],
            "Address for HTTPS clients; needs --tls-cert. If the default is taken, the node starts without it";
        max_http_connections: u64 = 10_000, Unit::Count, 1, 100_000, "max-http-connections",
            "HTTP connections; further ones get 503. The default is at most half of the allowed open files";
        http_timeout_ms: u64 = 30 * SECOND, Unit::Millis, 100, HOUR, "http-timeout",
            "Time limit for the head of an HTTP request, and for each wait for its body";
        http_idle_timeout_ms: u64 = HOUR, Unit::Millis, 100, DAY, "http-idle-timeout",
            "Time that an HTTP connection stays open without a request";
    }
    "statsd" {
        statsd_address: String = String::new(), Unit::Text, 0, 0, "statsd-address", ["empty: nothing is pushed"],
            "UDP address of a statsd daemon for the node's statistics";
        statsd_interval_ms: u64 = MINUTE, Unit::Millis, 100, DAY, "statsd-interval",
            "Time between two pushes to statsd";
        statsd_prefix: String = "nsq.%s".into(), Unit::Text, 0, 0, "statsd-prefix",
            "Prefix of statsd names; %s stands for broadcast address and HTTP port";
        statsd_mem_stats: bool = true, Unit::Switch(&[]), 0, 0, "statsd-mem-stats",
            "Push of the node's memory to statsd";
        statsd_udp_packet_size: u64 = 508, Unit::Count, 64, 65_507, "statsd-udp-packet-size",
            "Largest packet to statsd in bytes";
        statsd_exclude_ephemeral: bool = false, Unit::Switch(&[]), 0, 0, "statsd-exclude-ephemeral",
            "Omission of ephemeral topics and channels from statsd";
    }
    "Time from publish to FIN" {
        e2e_processing_latency_percentiles: Vec<String> = vec![], Unit::Shares, 0, 0, "e2e-processing-latency-percentile", ["none"],
            "Percentiles (above 0, up to 1.0) of the time from publish to FIN in /stats and statsd; repeated or with commas";
        e2e_processing_latency_window_time_ms: u64 = 10 * MINUTE, Unit::Millis, 2, DAY, "e2e-processing-latency-window-time",
            "Window of these percentiles; it moves by halves";
    }
    "Memory, per core" {
        max_pub_waiting_size: u64 = 32 * MIB, Unit::Bytes, MIB, 64 * GIB, "max-pub-waiting-size",
            "Bytes of publishes that wait for the disk; at this limit the node reads no more publishes. The default is at least \
             --max-msg-size and --max-body-size";
        pub_waiting_timeout_ms: u64 = 3 * SECOND, Unit::Millis, 1, HOUR, "pub-waiting-timeout",
            "Time after which a publish without room fails with E_PUB_TOO_MUCH_WAITING (HTTP 429) or `the disk is full`";
        read_cache_bytes: u64 = 32 * MIB, Unit::Bytes, MIB, 64 * GIB, "read-cache-bytes",
            "Cache of batches that lagging consumers read from disk";
        tail_cache_bytes: u64 = 16 * MIB, Unit::Bytes, MIB, 64 * GIB, "tail-cache-bytes",
            "Cache of recent messages for consumers at the end of the log";
        channel_memory: u64 = 256 * MIB, Unit::Bytes, 64 * KIB, TIB, "channel-memory",
            "Memory of unfinished messages, some 60 bytes each. A channel stops reading when it uses 8/9 of what other channels do not \
             use";
    }
    "Disk" {
        journal_bytes: u64 = 64 * MIB, Unit::Bytes, MIB, 64 * GIB, "journal-bytes",
            "Size of a core's journal. It bounds the replay of recovery, and the memory of bytes that are not yet in a segment";
        max_bytes_per_file: u64 = 128 * MIB, Unit::Bytes, 1, TIB, "max-bytes-per-file",
            "Size of a segment file, the unit of retention; less than 1MiB means 1MiB";
        accept_lost_journal: u64 = 0, Unit::Count, 0, i64::MAX as u64, "accept-lost-journal", ["0, never"],
            "Number of a lost journal, from the error of a refused startup: the node starts and accepts this loss alone";
        direct_bytes: u64 = 256 * KIB, Unit::Bytes, 4 * KIB, 512 * MIB, "direct-bytes",
            "Size from which a batch goes to its segment and not through the journal; above 256KiB without effect. 16KiB for a replica \
             that catches up";
        flush_bytes: u64 = MIB, Unit::Bytes, 4 * KIB, 512 * MIB, "flush-bytes",
            "Bytes of a partition that one write to its segment gathers";
        fin_sync_interval_ms: u64 = 100, Unit::Millis, 1, MINUTE, "fin-sync-interval",
            "Longest time until a FIN is durable; a crash may redeliver the messages finished in it";
        forward_deferred_after_ms: u64 = MINUTE, Unit::Millis, SECOND, 30 * DAY, "forward-deferred-after",
            "A deferred message with a longer remaining delay is copied to the end of the log, if more than max-bytes-per-file of \
             finished messages follow it";
        retention_ms: u64 = 0, Unit::Millis, 0, 3650 * DAY, "retention",
            "Time for which confirmed messages are kept. Per topic in the file";
        retention_bytes: u64 = 0, Unit::Bytes, 0, 1024 * TIB, "retention-bytes",
            "Newest bytes of a partition that are kept although confirmed. Per topic in the file";
        max_producers: u64 = 1000, Unit::Count, 1, 65_536, "max-producers",
            "Idempotent producers that a partition remembers (400 bytes of memory, 200 bytes of each snapshot). Repeats of a forgotten \
             one are refused";
        producer_expiry_ms: u64 = DAY, Unit::Millis, SECOND, 3650 * DAY, "producer-expiry",
            "Time without a write, by the log's timestamps, after which a partition forgets an idempotent producer";
        scrub_bytes_per_second: u64 = 4 * MIB, Unit::Bytes, 0, 4 * GIB, "scrub-bytes-per-second",
            "Rate per core at which the scrubber verifies cold data and repairs headers and commit logs; 0: off";
        delete_bytes_per_second: u64 = 128 * MIB, Unit::Bytes, 0, 64 * GIB, "delete-bytes-per-second",
            "Rate per core at which segments are deleted; a segment waits a minute at most, and not on a full disk. 0: at once";
        spare_bytes: u64 = 1024 * MIB, Unit::Bytes, 0, 64 * TIB, "spare-bytes",
            "Bytes of deleted segments that the node keeps as faster space for new ones, except on a full disk; less than \
             --max-bytes-per-file keeps none";
    }
    "Cluster" {
        cluster_file: String = String::new(), Unit::Text, 0, 0, "cluster-file", ["empty: the node is alone"],
            "TOML file of nodes, topics, and each partition's replicas and leader (docs/cluster-file.md). SIGHUP reloads it";
        etcd_endpoints: Vec<String> = Vec::new(), Unit::List, 0, 0, "etcd-endpoints", ["none"],
            "URLs of the members of the cluster's etcd v3, such as http://10.0.0.1:2379 (docs/cluster.md); repeated or with commas. \
             Excludes --cluster-file";
        etcd_tls_ca: String = String::new(), Unit::Text, 0, 0, "etcd-tls-ca", ["empty: those of the system"],
            "PEM file of CAs for the certificates of etcd's members (https://)";
        etcd_tls_cert: String = String::new(), Unit::Text, 0, 0, "etcd-tls-cert", ["empty: no client certificate"],
            "PEM file of the node's certificate chain for etcd";
        etcd_tls_key: String = String::new(), Unit::Text, 0, 0, "etcd-tls-key", ["empty: no client certificate"],
            "PEM file of the private key of --etcd-tls-cert";
        etcd_user: String = String::new(), Unit::Text, 0, 0, "etcd-user", ["empty: etcd asks nobody"],
            "The node's user in etcd";
        etcd_password_file: String = String::new(), Unit::Text, 0, 0, "etcd-password-file", ["empty: etcd asks nobody"],
            "File whose first line is the password of --etcd-user";
        cluster_name: String = "main".into(), Unit::Text, 0, 0, "cluster-name",
            "Name of the cluster: its keys in etcd begin with /ringmq/NAME/. Several clusters may share an etcd";
        node_name: String = String::new(), Unit::Text, 0, 0, "node-name", ["the host's name"],
            "Name of the node in logs, statistics and errors; only with --etcd-endpoints";
        zone: String = String::new(), Unit::Text, 0, 0, "zone", ["empty: one zone"],
            "Failure domain of the node, such as its rack. A partition's replicas are spread over zones";
        lease_ttl_ms: u64 = 10 * SECOND, Unit::Millis, SECOND, MINUTE, "lease-ttl",
            "Silence of the node after which its partitions get other leaders. At least --lease-ttl-floor";
        lease_ttl_floor_ms: u64 = 5 * SECOND, Unit::Millis, SECOND, MINUTE, "lease-ttl-floor",
            "Shortest accepted --lease-ttl; a shorter one ends during an election of etcd. For tests";
        replicas: u16 = 3, Unit::Count, 1, 5, "replicas",
            "Replicas of each partition of a topic that its first PUB or SUB creates; only with --etcd-endpoints";
        replace_after_ms: u64 = 10 * MINUTE, Unit::Millis, SECOND, 30 * DAY, "replace-after",
            "Absence of a node after which its replicas are made elsewhere. The controller's value holds";
        rebuilds_max: u64 = 32, Unit::Count, 1, 100_000, "rebuilds-max",
            "Partitions of the cluster that catch up at a time, each at --catch-up-rate, before another replica is made. The \
             controller's value holds";
        min_isr: u16 = 0, Unit::Count, 0, 5, "min-isr", ["0, more than half of --replicas"],
            "In-sync replicas that a publish needs in a topic created by its first PUB or SUB";
        peer_address: String = "0.0.0.0:4170".into(), Unit::Address, 0, 0, "peer-address",
            "Address for the other nodes of the cluster";
        broadcast_peer_address: String = String::new(), Unit::Text, 0, 0, "broadcast-peer-address",
            ["broadcast-address with the port of peer-address"],
            "host:port at which the other nodes reach this one; only with --etcd-endpoints";
        peer_tls_cert: String = String::new(), Unit::Text, 0, 0, "peer-tls-cert", ["empty: no TLS"],
            "PEM file of the node's certificate chain for its peers, which then speak only TLS";
        peer_tls_key: String = String::new(), Unit::Text, 0, 0, "peer-tls-key", ["empty: no TLS"],
            "PEM file of the private key of --peer-tls-cert";
        peer_tls_ca: String = String::new(), Unit::Text, 0, 0, "peer-tls-ca", ["empty: no TLS"],
            "PEM file of CAs; a peer must show a certificate of one of them";
        peer_tls_min_version: String = "1.3".into(), Unit::Word(&["1.2", "1.3"]), 0, 0, "peer-tls-min-version",
            "Oldest version of TLS between peers: 1.2 or 1.3";
        replica_window_bytes: u64 = 8 * MIB, Unit::Bytes, 64 * KIB, GIB, "replica-window-bytes",
            "Unacknowledged bytes per partition and follower that a leader sends; one batch may exceed it";
        receive_in_place_bytes: u64 = 64 * KIB, Unit::Bytes, 1, GIB, "receive-in-place-bytes",
            "Missing bytes from which on a message or batch is received without a copy; not with TLS";
        catch_up_rate: u64 = 0, Unit::Bytes, 0, 64 * GIB, "catch-up-rate", ["0, as fast as it goes"],
            "Bytes per second and partition that a leader sends to a follower that catches up";
        replica_retry_ms: u64 = 500, Unit::Millis, 10, MINUTE, "replica-retry",
            "Pause before a replica repeats an unanswered request";
        replica_heartbeat_ms: u64 = 500, Unit::Millis, 10, MINUTE, "replica-heartbeat",
            "Silence after which a node pings a peer, and a leader sends a follower the committed end";
        follower_limit_ms: u64 = 3 * SECOND, Unit::Millis, 100, HOUR, "follower-limit",
            "Lag of an in-sync replica after which the leader proposes its removal from the ISR";
        replica_write_limit_ms: u64 = 5 * SECOND, Unit::Millis, 200, HOUR, "replica-write-limit",
            "Time that a publish waits for an in-sync replica before its outcome is unknown. Above --follower-limit";
        cursor_sync_interval_ms: u64 = 100, Unit::Millis, 1, MINUTE, "cursor-sync-interval",
            "Interval at which a leader sends its channels' progress to the followers; the next leader may redeliver the messages \
             finished in it";
    }
    "Executor" {
        stall_log_ms: u64 = 100, Unit::Millis, 1, MINUTE, "stall-log",
            "Duration from which on a core's turn is logged";
        spin_before_park_us: u64 = 0, Unit::Micros, 0, 1_000_000, "spin-before-park",
            "Time for which an idle core looks for work before it sleeps: lower latency for more CPU";
        time_slice_us: u64 = 100, Unit::Micros, 0, 100_000, "time-slice",
            "Scheduler time slice of the node's threads (Linux 6.12 or later; 100us or more); 0: the kernel's";
    }
}

/// Smallest segment.
pub(super) const SEGMENT_MIN: u64 = MIB;

const TLS_VERSIONS: &[&str] = &["tls1.0", "tls1.1", "tls1.2", "tls1.3"];

/// nsqd's words; `fatal` is taken and means `error`.
const LOG_LEVELS: &[&str] = &["trace", "debug", "info", "warn", "error", "fatal"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::row::Value;

    #[test]
    fn every_default_lies_within_its_bounds_and_reads_back() {
        let defaults = Settings::default();
        for row in TABLE {
            let value = (row.get)(&defaults);
            if !row.is_number() && matches!(&value, Value::Text(text) if text.is_empty()) {
                continue;
            }
            assert_eq!(row.parse(&row.show(&value)), Ok(value.into()), "{}", row.name);
        }
    }

    #[test]
    fn the_bounds_of_a_row_fit_its_field() {
        for row in TABLE.iter().filter(|row| row.is_number()) {
            for bound in [row.min, row.max] {
                let mut settings = Settings::default();
                (row.set)(&mut settings, Value::Number(bound));
                assert_eq!((row.get)(&settings), Value::Number(bound), "{}", row.name);
            }
            assert!(row.min < row.max, "{}", row.name);
        }
    }

    #[test]
    fn names_are_unique_and_a_row_says_what_it_is_for() {
        for (i, row) in TABLE.iter().enumerate() {
            assert!(TABLE[..i].iter().all(|other| other.name != row.name), "{} twice", row.name);
            assert!(row.about.len() > 20 && !row.about.ends_with('.'), "{}", row.name);
            assert!(row.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{}", row.name);
        }
    }
}
