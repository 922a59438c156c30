//! A worker's events over ZeroMQ, as vLLM, SGLang and TensorRT-LLM publish them. What was lost on the way is asked for at the
//! publisher's replay endpoint, before what comes behind it counts.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cacheplan_index::{Batch, Index};
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// Why a subscription ended, or what of it was left out.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// How long the next message of a replay may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The number of the message that ends a replay.
const END: u64 = u64::MAX;

/// Where a worker publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publisher {
    /// Its socket of events.
    pub events: String,
    /// Its socket of replays, if it has one.
    pub replay: Option<String>,
}

impl FromStr for Publisher {
    type Err = Failed;

    /// Reads `tcp://host:5557` or, with a replay endpoint, `tcp://host:5557,tcp://host:5558`.
    fn from_str(text: &str) -> Result<Self, Failed> {
        let (events, replay) = text.split_once(',').map_or((text, None), |(events, replay)| (events, Some(replay)));
        let is_endpoint = |part: &str| part.contains("://") && !part.contains(',');
        if !is_endpoint(events) || !replay.is_none_or(is_endpoint) {
            return Err(format!(
                "`{text}` is not EVENTS or EVENTS,REPLAY, as in tcp://127.0.0.1:5557,tcp://127.0.0.1:5558"
            )
            .into());
        }
        Ok(Self { events: events.to_owned(), replay: replay.map(str::to_owned) })
    }
}

/// Takes what a worker publishes until its socket fails. What is no batch, and what no replay brought, is reported and left out.
pub async fn subscribe(
    index: Arc<Index>,
    worker: u64,
    publisher: Publisher,
    report: impl Fn(Failed),
) -> Result<(), Failed> {
    let mut socket = SubSocket::new();
    socket.connect(&publisher.events).await?;
    socket.subscribe("").await?;
    loop {
        let (number, batch) = match published(socket.recv().await?) {
            Ok(message) => message,
            Err(failed) => {
                report(failed);
                continue;
            }
        };
        let missing = index.missing(worker, number, &batch);
        if let Some(endpoint) = publisher.replay.as_ref().filter(|_| !missing.is_empty()) {
            // In a task of its own: a socket whose peer goes away panics.
            let replay = replay(Arc::clone(&index), worker, endpoint.clone(), missing);
            if let Err(failed) = tokio::spawn(replay).await.map_err(Failed::from).flatten() {
                report(failed);
            }
        }
        if let Err(error) = index.take_batch(worker, number, &batch) {
            report(error.into());
        }
    }
}

/// Topic, number and batch.
fn published(message: ZmqMessage) -> Result<(u64, Batch), Failed> {
    let frames = message.into_vec();
    let [_, number, batch] = frames.as_slice() else {
        return Err(format!("a message of {} frames, not topic, number and batch", frames.len()).into());
    };
    Ok((counted(number)?, Batch::from_msgpack(batch)?))
}

fn counted(number: &[u8]) -> Result<u64, Failed> {
    let number = <[u8; 8]>::try_from(number).map_err(|_| format!("a number of {} bytes, not 8", number.len()))?;
    Ok(u64::from_be_bytes(number))
}

/// Asks for all batches from a number on, and takes those that are missing: an empty frame and the number are answered by an empty
/// frame, a number and a batch for each, and at last by a number of minus one.
async fn replay(index: Arc<Index>, worker: u64, endpoint: String, missing: Range<u64>) -> Result<(), Failed> {
    let mut socket = DealerSocket::new();
    timeout(PATIENCE, socket.connect(&endpoint)).await??;
    let mut request = ZmqMessage::from(Vec::<u8>::new());
    request.push_back(missing.start.to_be_bytes().to_vec().into());
    socket.send(request).await?;
    loop {
        let frames = timeout(PATIENCE, socket.recv()).await??.into_vec();
        let [.., number, batch] = frames.as_slice() else {
            return Err(format!("{endpoint}: a replay of {} frames, not number and batch", frames.len()).into());
        };
        match counted(number)? {
            END => return Ok(()),
            number if missing.contains(&number) => index.take(worker, number, batch)?,
            // It comes as it is published, or came.
            _ => {}
        }
    }
}
