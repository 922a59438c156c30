//! `scorer ADDRESS ENDPOINT…`: subscribes to engines' events over ZeroMQ (`tcp://host:5557`, one for each worker, and behind a
//! comma its replay endpoint) and scores prompts at `http://ADDRESS/score`.

use std::io::Read;
use std::sync::Arc;

use cacheplan_index::{Bounds, Index};
use cacheplan_index_peers::scorer::{MAX_BODY_BYTES, score};
use cacheplan_index_peers::subscribe::{Failed, Publisher, subscribe};
use tiny_http::{Method, Response, Server};

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let (address, publishers) =
        (arguments.next(), arguments.map(|one| one.parse()).collect::<Result<Vec<Publisher>, _>>()?);
    let Some(address) = address.filter(|_| !publishers.is_empty()) else {
        return Err(
            "scorer ADDRESS ENDPOINT…, as in `scorer 127.0.0.1:9000 tcp://127.0.0.1:5557,tcp://127.0.0.1:5558`".into(),
        );
    };
    let index = Arc::new(Index::new(Bounds::default()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    for (worker, publisher) in publishers.iter().cloned().enumerate() {
        let index = Arc::clone(&index);
        runtime.spawn(async move {
            let report = |failed: Failed| eprintln!("worker {worker}: {failed}");
            if let Err(failed) = subscribe(index, worker as u64, publisher, report).await {
                report(failed);
            }
        });
    }
    let names: Vec<String> = publishers.into_iter().map(|publisher| publisher.events).collect();
    let server = Server::http(&address)?;
    println!("scores at http://{}/score", server.server_addr());
    for mut request in server.incoming_requests() {
        let mut body = Vec::new();
        let is_asked = *request.method() == Method::Post && request.url() == "/score";
        let read = request.as_reader().take(MAX_BODY_BYTES).read_to_end(&mut body);
        let response = match read.map_err(|error| error.to_string()).and_then(|_| score(&index, &names, &body)) {
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
