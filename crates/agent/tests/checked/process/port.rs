//! By which faults and events come, and pages come and go.

#[path = "../../../../pager/src/process/port/agent/mod.rs"]
pub mod agent;
#[path = "../../../../pager/src/process/port/batch.rs"]
pub mod batch;
