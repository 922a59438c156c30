//! `scorer ADDRESS ENDPOINT…`: subscribes to engines' events over ZeroMQ (`tcp://host:5557`, one for each worker) and scores
//! prompts at `http://ADDRESS/score`.

use std::io::Read;
use std::sync::Arc;

use cacheplan_index::{Bounds, Index};
use cacheplan_index_peers::scorer::{MAX_BODY_BYTES, score};
use tiny_http::{Method, Response, Server};
use zeromq::{Socket, SocketRecv, SubSocket};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Topic, number, batch: what vLLM, SGLang and TensorRT-LLM send. What is no batch is said and left out.
async fn subscribe(index: Arc<Index>, worker: u64, endpoint: String) -> Result<(), Failed> {
    let mut socket = SubSocket::new();
    socket.connect(&endpoint).await?;
    socket.subscribe("").await?;
    loop {
        let frames = socket.recv().await?.into_vec();
        let [_, number, batch] = frames.as_slice() else {
            eprintln!("{endpoint}: a message of {} frames, not topic, number and batch", frames.len());
            continue;
        };
        let Ok(number) = <[u8; 8]>::try_from(number.as_ref()) else {
            eprintln!("{endpoint}: a number of {} bytes, not 8", number.len());
            continue;
        };
        if let Err(error) = index.take(worker, u64::from_be_bytes(number), batch) {
            eprintln!("{endpoint}: {error}");
        }
    }
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let (address, endpoints) = (arguments.next(), arguments.collect::<Vec<_>>());
    let Some(address) = address.filter(|_| !endpoints.is_empty()) else {
        return Err("scorer ADDRESS ENDPOINT…, as in `scorer 127.0.0.1:9000 tcp://127.0.0.1:5557`".into());
    };
    let index = Arc::new(Index::new(Bounds::default()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    for (worker, endpoint) in endpoints.iter().cloned().enumerate() {
        let index = Arc::clone(&index);
        runtime.spawn(async move {
            if let Err(error) = subscribe(index, worker as u64, endpoint.clone()).await {
                eprintln!("{endpoint}: {error}");
            }
        });
    }
    let server = Server::http(&address)?;
    println!("scores at http://{}/score", server.server_addr());
    for mut request in server.incoming_requests() {
        let mut body = Vec::new();
        let is_asked = *request.method() == Method::Post && request.url() == "/score";
        let read = request.as_reader().take(MAX_BODY_BYTES).read_to_end(&mut body);
        let response = match read.map_err(|error| error.to_string()).and_then(|_| score(&index, &endpoints, &body)) {
            _ if !is_asked => Response::from_string("POST /score").with_status_code(404),
            Ok(scores) => Response::from_string(serde_json::to_string(&scores)?),
            Err(error) => Response::from_string(error).with_status_code(400),
        };
        if let Err(error) = request.respond(response) {
            eprintln!("{error}");
        }
    }
    Ok(())
}
