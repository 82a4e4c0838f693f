//! Handshake of two nodes: the side that connects says Hello, the other answers Welcome, which has the same fields, or Reject.

use super::{Lanes, RejectCode, fb};
use crate::base::NodeId;
use crate::codec::metadata::{Malformed, table};

/// Version of the protocol. Two sides must have the same major. A minor only adds; the lower one of two is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
}

/// Random 128 bits, given to a cluster at its beginning: nodes of two clusters never mix, whatever their addresses are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ClusterId(pub [u8; 16]);

/// Cores of a node, so that the other side can connect to the core of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Number of cores, at least 1.
    pub cores: u16,
    /// Core of this end of the connection.
    pub core: u16,
    /// The rule from partition to core. A sender that does not know the rule sends to any core.
    pub placement: u16,
}

impl Layout {
    /// [`crate::base::TopicInfo::core_of`].
    pub const BY_NAME: u16 = 1;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    pub version: Version,
    pub features: u64,
    pub node_id: NodeId,
    pub cluster_id: ClusterId,
    /// Rises with each startup of the node: of two connections from the same core the older life's is dead.
    pub generation: u64,
    /// Version of the program, for logs.
    pub node_version: &'a str,
    pub layout: Layout,
    /// Lanes that this connection carries.
    pub lanes: Lanes,
    /// The sender says something at least this often. At least 1.
    pub heartbeat_ms: u32,
    /// Number of the link. A Hello's connection lives on this core of the receiver, modulo its cores. A Welcome repeats it.
    pub link: u16,
    /// Number of the process: one more with each process that the metadata store registers as this node, also on a copy of its data
    /// path. Peers refuse messages of a lower number. 0: no store.
    pub incarnation: u64,
}

/// Agreed parameters of a connection after the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    pub version: Version,
    pub features: u64,
    pub lanes: Lanes,
}

/// Reason why a node refuses a connection, which it then closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject<'a> {
    pub code: RejectCode,
    pub message: &'a str,
}

impl<'a> Hello<'a> {
    /// Decodes a Hello of any version: [`Hello::agree`] refuses other versions.
    pub(super) fn decode(kind: &'static str, metadata: &'a [u8]) -> Result<Hello<'a>, Malformed> {
        let t = table::<fb::Hello>(kind, metadata)?;
        Ok(Hello {
            version: Version { major: t.major(), minor: t.minor() },
            features: t.features(),
            node_id: NodeId(t.node_id().0),
            cluster_id: ClusterId(t.cluster_id().0),
            generation: t.generation(),
            node_version: t.node_version(),
            layout: Layout { cores: t.cores(), core: t.core(), placement: t.placement() },
            lanes: Lanes(t.lanes()),
            heartbeat_ms: t.heartbeat_ms(),
            link: t.link(),
            incarnation: t.incarnation(),
        })
    }

    /// Agreed parameters between this node and the one that sent `theirs`, or the code of the refusal. The caller checks against the
    /// metadata that the node belongs to the cluster.
    pub fn agree(&self, theirs: &Hello<'_>) -> Result<Agreed, RejectCode> {
        if theirs.version.major != self.version.major {
            return Err(RejectCode::BadVersion);
        }
        if theirs.cluster_id != self.cluster_id {
            return Err(RejectCode::OtherCluster);
        }
        if theirs.node_id == self.node_id {
            return Err(RejectCode::SameNode);
        }
        if theirs.layout.core >= theirs.layout.cores || theirs.heartbeat_ms == 0 {
            return Err(RejectCode::Malformed);
        }
        let lanes = Lanes(self.lanes.0 & theirs.lanes.0);
        if lanes.0 == 0 {
            return Err(RejectCode::BadLanes);
        }
        let minor = self.version.minor.min(theirs.version.minor);
        Ok(Agreed { version: Version { major: self.version.major, minor }, features: self.features & theirs.features, lanes })
    }
}

impl<'a> Reject<'a> {
    pub(super) fn decode(metadata: &'a [u8]) -> Result<Reject<'a>, Malformed> {
        let t = table::<fb::Reject>("Reject", metadata)?;
        // of a later version: as the first
        let code = t.code().variant_name().map_or(RejectCode::Other, |_| t.code());
        Ok(Reject { code, message: t.message() })
    }
}
