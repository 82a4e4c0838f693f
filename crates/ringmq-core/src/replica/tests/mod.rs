//! Rule by rule, one machine at a time.

mod cursors;
mod follower;
mod former;
mod given_up;
mod hand_over;
mod leader;
mod mend;
mod opening;
pub(super) mod rig;
mod table;
