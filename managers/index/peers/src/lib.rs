//! The index of cacheplan behind routers: Dynamo's trait of an indexer, and a scorer that is asked over HTTP.

pub mod dynamo;
pub mod scorer;
pub mod subscribe;
