//! The devices that a command finds, and what lies on each of them.

mod common;

use cacheplan_serve::{Answer, Options, ServeError, Starts, answer, manifest, outcome};
use common::{launch, models, on};
use rstest::rstest;

const MODEL: &str = "Qwen__Qwen3-8B";

fn told(command: &str, device: &str) -> Result<Answer, ServeError> {
    outcome(&launch(command), &models(MODEL), &on(device))
}

/// The places of the cells with their MiB, in the order in which they are logged.
fn buffers(found: &Answer) -> Vec<(String, f64)> {
    let buffer = |line: &String| {
        let (name, size) = line.strip_prefix("llama_kv_cache: ")?.split_once(" KV buffer size = ")?;
        Some((name.to_owned(), size.strip_suffix(" MiB")?.parse().unwrap()))
    };
    found.lines.iter().filter_map(buffer).collect()
}

/// Of two GPUs, whatever engine asks, and of every version alike.
#[rstest]
#[case::none("CUDA_VISIBLE_DEVICES=", 0)]
#[case::negative("CUDA_VISIBLE_DEVICES=-1", 0)]
#[case::twice("CUDA_VISIBLE_DEVICES=0,0", 0)]
#[case::not_there("CUDA_VISIBLE_DEVICES=7", 0)]
#[case::one("CUDA_VISIBLE_DEVICES=1", 1)]
#[case::one_before_what_is_not_there("CUDA_VISIBLE_DEVICES=0,7", 1)]
#[case::both("CUDA_VISIBLE_DEVICES=1,0", 2)]
#[case::named("CUDA_VISIBLE_DEVICES=GPU-a,GPU-b", 2)]
fn no_rank_has_a_gpu_that_cuda_does_not_show(
    #[case] variable: &str,
    #[case] gpus: u32,
    #[values(1, 2)] ranks: u32,
    #[values(
        ("vllm serve m -tp", "0.8.5"),
        ("vllm serve m -tp", "0.24.0"),
        ("vllm serve m -tp", "0.33.0"),
        ("sglang serve --model-path m --tp", "0.5.23"),
        ("trtllm-serve m --tp_size", "1.3.0rc25")
    )]
    (engine, version): (&str, &str),
) {
    let command = launch(&format!("env {variable} {engine} {ranks}"));
    let options = Options { version: Some(version.to_owned()), ..on("2xh100") };
    match outcome(&command, &models(MODEL), &options) {
        Ok(found) => assert!(ranks <= gpus && found.starts == Starts::Yes, "{:?}", found.reason),
        Err(error) => {
            let said = error.to_string();
            assert!(ranks > gpus && error.exit_code() == 3 && said.contains(variable), "{said}");
        }
    }
}

#[test]
fn an_engine_on_the_processor_needs_no_gpu() {
    let command = "env CUDA_VISIBLE_DEVICES= sglang serve --model-path m --device cpu --max-total-tokens 8192 \
                   --context-length 4096";
    assert!(told(&command.split_whitespace().collect::<Vec<_>>().join(" "), "h100").is_ok());
}

/// Layers are 160 MiB of the 5,760 each, of which the first device has one more than half of 37, the output among these.
#[rstest]
#[case("", &[("CUDA0", 3040.0), ("CUDA1", 2720.0)])]
#[case(" -ts 3,1", &[("CUDA0", 4480.0), ("CUDA1", 1280.0)])]
#[case(" -ts 0,1", &[("CUDA1", 5760.0)])]
#[case(" -sm row", &[("CUDA0", 3040.0), ("CUDA1", 2720.0)])]
#[case(" -sm none -mg 1", &[("CUDA1", 5760.0)])]
#[case(" -dev CUDA1", &[("CUDA1", 5760.0)])]
#[case(" -dev cuda1,cuda0", &[("CUDA1", 3040.0), ("CUDA0", 2720.0)])]
#[case(" -dev Vulkan0", &[("Vulkan0", 5760.0)])]
#[case(" -dev none", &[("CPU", 5760.0)])]
#[case(" -ngl 10", &[("CPU", 4320.0), ("CUDA0", 800.0), ("CUDA1", 640.0)])]
#[case(" -nkvo", &[("CPU", 5760.0)])]
fn a_layer_of_llama_cpp_lies_whole_on_a_device(#[case] flags: &str, #[case] expected: &[(&str, f64)]) {
    let found = told(&format!("llama-server -m m -c 40960 -np 1{flags}"), "2xh100").unwrap();
    let expected: Vec<(String, f64)> = expected.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
    assert_eq!(buffers(&found), expected);
}

#[rstest]
#[case("CUDA_VISIBLE_DEVICES=", &["CPU"])]
#[case("CUDA_VISIBLE_DEVICES=7", &["CPU"])]
#[case("CUDA_VISIBLE_DEVICES=1", &["CUDA0"])]
#[case("CUDA_VISIBLE_DEVICES=1,0", &["CUDA0", "CUDA1"])]
fn llama_cpp_has_the_devices_that_cuda_shows_it(#[case] variable: &str, #[case] expected: &[&str]) {
    let found = told(&format!("env {variable} llama-server -m m -c 40960 -np 1"), "2xh100").unwrap();
    let names: Vec<String> = buffers(&found).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, expected);
}

/// 96 GiB of caches, of which two devices have half each and one does not have all.
#[rstest]
#[case("llama-server -m m -c 700000 -np 1 --fit off", Starts::Yes)]
#[case("llama-server -m m -c 700000 -np 1 --fit off -dev CUDA0", Starts::No)]
#[case("llama-server -m m -c 700000 -np 1 --fit off -sm none", Starts::No)]
#[case("llama-server -m m -c 700000 -np 1 --fit off -ts 9,1", Starts::No)]
#[case("env CUDA_VISIBLE_DEVICES=0 llama-server -m m -c 700000 -np 1 --fit off", Starts::No)]
#[case("env CUDA_VISIBLE_DEVICES= llama-server -m m -c 700000 -np 1 --fit off", Starts::Yes)]
fn each_device_of_llama_cpp_holds_its_own_layers(#[case] command: &str, #[case] starts: Starts) {
    let found = told(command, "2xh100").unwrap();
    assert_eq!(found.starts, starts, "{:?}", found.reason);
}

/// A layer has 16 GiB of caches: eight devices have 512 for the 36, and five of the first are more than it has.
#[rstest]
#[case(4_194_304, Starts::No)]
#[case(3_145_728, Starts::Yes)]
fn the_fullest_of_eight_devices_decides(#[case] cells: u64, #[case] starts: Starts) {
    let found = told(&format!("llama-server -m m -ngl 99 -c {cells} -np 128 --fit off"), "8xh100").unwrap();
    assert_eq!(found.starts, starts, "{:?}", found.reason);
    assert!(starts == Starts::Yes || found.reason.unwrap().ends_with("are more than the 79.65 GiB of CUDA0"));
}

/// Wherever layers lie, all of them are there.
#[rstest]
fn what_lies_on_devices_is_all_that_there_is(
    #[values("Qwen__Qwen3-8B", "google__gemma-3-1b-it", "openai__gpt-oss-120b", "Qwen__Qwen3-Next-80B-A3B-Thinking")]
    model: &str,
    #[values(1, 2, 3, 8)] devices: u32,
    #[values("", " -ts 1,2", " -ngl 11", " -nkvo", " -sm row", " -ctk q8_0")] flags: &str,
) {
    let of = |devices: u32, flags: &str| {
        let command = launch(&format!("llama-server -m m -c 16384 -np 2{flags}"));
        buffers(&outcome(&command, &models(model), &on(&format!("{devices}xh200"))).unwrap())
    };
    let sum = |found: &[(String, f64)]| found.iter().map(|(_, size)| size).sum::<f64>();
    let (found, whole) = (of(devices, flags), of(1, if flags.contains("-ctk") { flags } else { "" }));
    assert!((sum(&found) - sum(&whole)).abs() < 0.01 * found.len() as f64, "{found:?} {whole:?}");
}

#[rstest]
#[case("-dev CUDA9", 2, "error while handling argument \"--device\": invalid device: CUDA9")]
#[case("-dev CUDA0,gpu", 2, "invalid device: gpu")]
#[case("-dev ROCm0", 2, "invalid device: ROCm0")]
#[case("-dev none,CUDA0", 2, "invalid device: none")]
#[case("-dev RPC0", 4, "what a device of another host has is not known")]
#[case("-sm none -mg 2", 3, "invalid value for main_gpu: 2 (available devices: 2)")]
#[case("-sm none -dev CUDA1 -mg 1", 3, "invalid value for main_gpu: 1 (available devices: 1)")]
#[case("-sm tensor", 4, "--split-mode: how caches that are divided themselves")]
fn llama_cpp_refuses_devices_that_are_not_there(#[case] flags: &str, #[case] code: u8, #[case] expected: &str) {
    let error = told(&format!("llama-server -m m -c 4096 {flags}"), "2xh100").unwrap_err();
    assert_eq!(error.exit_code(), code, "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

#[rstest]
#[case("--base-gpu-id 6 --tp 2", None)]
#[case("--base-gpu-id 7 --tp 2", Some(8))]
#[case("--base-gpu-id 8", Some(8))]
#[case("--gpu-id-step 2 --tp 4", None)]
#[case("--gpu-id-step 2 --tp 8", Some(14))]
#[case("--gpu-id-step 2 --tp 2 --dp 2 --base-gpu-id 2", Some(8))]
#[case("--base-gpu-id 4 --tp 2 --pp-size 2", None)]
#[case("--base-gpu-id 5 --tp 2 --pp-size 2", Some(8))]
#[case("--base-gpu-id 4 --tp 8 --nnodes 2", None)]
#[case("--base-gpu-id 5 --tp 8 --nnodes 2", Some(8))]
fn each_rank_of_sglang_takes_a_gpu_that_is_there(#[case] flags: &str, #[case] last: Option<u64>) {
    let found = told(&format!("sglang serve --model-path m {flags}"), "8xh100");
    match last {
        None => assert_eq!(found.unwrap().starts, Starts::Yes),
        Some(last) => {
            let error = found.unwrap_err();
            let said = format!("invalid device ordinal (the last rank takes GPU {last}, and it sees 8)");
            assert!(error.exit_code() == 3 && error.to_string().contains(&said), "{error}");
        }
    }
}

/// Ray finds the GPUs of all pods of a group, whatever the leader has of them.
#[rstest]
#[case(2, 1, 1, "-pp 2", None)]
#[case(2, 1, 1, "-tp 1 -pp 3", Some(2))]
#[case(2, 1, 1, "-tp 4", Some(2))]
#[case(3, 1, 2, "-tp 4", None)]
#[case(3, 1, 2, "-tp 8", Some(5))]
fn ray_gives_no_more_ranks_than_its_group_has_gpus(
    #[case] size: u32,
    #[case] leader: u32,
    #[case] worker: u32,
    #[case] flags: &str,
    #[case] all: Option<u32>,
) {
    let pod = |command: &str, gpus: u32| {
        format!(
            "{{spec: {{containers: [{{name: c, image: 'vllm/vllm-openai:v0.33.0', command: [sh, -c, '{command}'], \
             resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}]}}}}"
        )
    };
    let leader = pod(&format!("vllm serve m {flags} --distributed-executor-backend ray"), leader);
    let worker = pod("sleep 1", worker);
    let text = format!(
        "kind: LeaderWorkerSet\nspec: {{leaderWorkerTemplate: {{size: {size}, leaderTemplate: {leader}, workerTemplate: {worker}}}}}\n"
    );
    let found = manifest::read("m.yaml", text.as_bytes()).unwrap();
    let found = answer(&found[0], models(MODEL), &on("h100")).map_err(|error| error.to_string());
    match all {
        Some(all) => {
            let error = found.unwrap_err();
            let said = format!("the pods of its group have {all} together");
            assert!(error.contains("Cannot provide a placement group") && error.contains(&said), "{error}");
        }
        None => assert_eq!(found.unwrap().starts, Starts::Yes),
    }
}

/// Dynamo's operator joins the nodes of a worker, each of which has the devices that are stated.
#[rstest]
#[case("2xh100", "2", "-tp 2 -pp 2", true)]
#[case("h100", "1", "-pp 2", true)]
#[case("2xh100", "2", "-tp 2 -pp 4", false)]
#[case("8xh100", "2", "-tp 2 -pp 4", false)]
fn nodes_that_a_controller_joins_each_have_the_devices(
    #[case] device: &str,
    #[case] gpus: &str,
    #[case] flags: &str,
    #[case] starts: bool,
) {
    let text = format!(
        "{{kind: DynamoGraphDeployment, spec: {{services: {{w: {{multinode: {{nodeCount: 2}}, resources: {{limits: {{gpu: '{gpus}'}}}}, \
         extraPodSpec: {{mainContainer: {{image: 'nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.5.1', \
         command: [sh, -c, 'python3 -m dynamo.vllm --model m {flags}']}}}}}}}}}}}}"
    );
    let found = manifest::read("m.yaml", text.as_bytes()).unwrap();
    let found = answer(&found[0], models(MODEL), &on(device)).map_err(|error| error.to_string());
    match starts {
        true => assert_eq!(found.unwrap().starts, Starts::Yes),
        false => assert!(found.unwrap_err().contains("available GPUs (4) in this node")),
    }
}

const GPU: &str = "resources: {limits: {nvidia.com/gpu: 1}}";

/// KServe joins the stages, each on a node with GPUs of its own.
#[rstest]
#[case::stages("pipelineParallelSize: 2", "pipeline: 2", None)]
#[case::more_ranks(
    "pipelineParallelSize: 2, tensorParallelSize: 2",
    "pipeline: 2, tensor: 2",
    Some("available GPUs (2) in this node")
)]
fn stages_of_kserve_are_nodes(#[case] service: &str, #[case] pool: &str, #[case] expected: Option<&str>) {
    let service = format!(
        "{{kind: InferenceService, spec: {{predictor: {{model: {{modelFormat: {{name: huggingface}}, storageUri: 'hf://a/b', {GPU}}}, \
         workerSpec: {{{service}}}}}}}}}\n"
    );
    let pool = format!(
        "{{kind: LLMInferenceService, spec: {{model: {{uri: 'hf://a/b'}}, parallelism: {{{pool}}}, \
         template: {{containers: [{{name: main, image: 'vllm/vllm-openai:v0.33.0', {GPU}}}]}}, worker: {{containers: []}}}}}}\n"
    );
    for text in [service, pool] {
        let found = manifest::read("m.yaml", text.as_bytes()).unwrap();
        assert_eq!((found.len(), found[0].gpus, found[0].nodes), (1, Some(2), Some(2)), "{found:?}");
        let found = answer(&found[0], models(MODEL), &on("h100")).map_err(|error| error.to_string());
        match expected {
            Some(expected) => assert!(found.unwrap_err().contains(expected)),
            None => assert_eq!(found.unwrap().starts, Starts::Yes),
        }
    }
}

/// Two pods of one GPU, which only Ray looks at together.
#[rstest]
#[case("[]", Some("World size (2) is larger than the number"))]
#[case("[--distributed-executor-backend=ray]", None)]
fn the_pods_of_llm_d_are_a_group(#[case] args: &str, #[case] expected: Option<&str>) {
    let text = format!(
        "{{multinode: true, modelArtifacts: {{uri: 'hf://a/b', name: m}}, decode: {{parallelism: {{tensor: 2, workers: 2}}, \
         containers: [{{image: 'vllm/vllm-openai:v0.33.0', modelCommand: vllmServe, args: {args}, {GPU}}}]}}}}\n"
    );
    let found = manifest::read("m.yaml", text.as_bytes()).unwrap();
    assert_eq!((found[0].gpus, found[0].group_gpus), (Some(1), Some(2)), "{found:?}");
    let found = answer(&found[0], models(MODEL), &on("h100")).map_err(|error| error.to_string());
    match expected {
        Some(expected) => assert!(found.unwrap_err().contains(expected)),
        None => assert_eq!(found.unwrap().starts, Starts::Yes),
    }
}

#[rstest]
#[case("vllm/vllm-openai-rocm:v0.33.0", "h100", Some("take vllm/vllm-openai"))]
#[case("vllm/vllm-openai-rocm:v0.33.0", "mi300x", None)]
#[case("vllm/vllm-openai:v0.33.0", "h100", None)]
fn an_image_of_another_build_runs_on_no_nvidia_device(
    #[case] image: &str,
    #[case] device: &str,
    #[case] expected: Option<&str>,
) {
    let text = format!("docker run --gpus all {image} --model m --max-model-len 2048\n");
    let found = manifest::read("m.sh", text.as_bytes()).unwrap();
    let found = answer(&found[0], models(MODEL), &on(device)).map_err(|error| error.to_string());
    match expected {
        Some(expected) => {
            let error = found.unwrap_err();
            assert!(error.contains(image) && error.contains(expected), "{error}");
        }
        None => assert_eq!(found.unwrap().starts, Starts::Yes),
    }
}

/// Two pods of one GPU: each is a node, and Ray, MPI or the command itself says that there are others.
#[rstest]
#[case::alone("vllm-openai:v0.33.0", "vllm serve m -pp 2", Some("World size (2) is larger than the number"))]
#[case::nodes(
    "vllm-openai:v0.33.0",
    "vllm serve m -pp 2 --nnodes $(LWS_GROUP_SIZE) --node-rank $(LWS_WORKER_INDEX)",
    None
)]
#[case::ray("vllm-openai:v0.33.0", "vllm serve m -pp 2 --distributed-executor-backend ray", None)]
#[case::ray_by_itself("vllm-openai:v0.11.0", "vllm serve m -pp 2", None)]
#[case::sglang("sglang:v0.5.23", "sglang serve --model-path m --tp 2 --nnodes $(LWS_GROUP_SIZE)", None)]
#[case::sglang_alone("sglang:v0.5.23", "sglang serve --model-path m --tp 2", Some("World size (2)"))]
#[case::mpi("tensorrt-llm/release:1.3.0rc25", "trtllm-serve m --tp_size 2", None)]
fn the_pods_of_a_group_are_nodes(#[case] image: &str, #[case] command: &str, #[case] expected: Option<&str>) {
    let container = format!(
        "{{name: c, image: 'org/{image}', command: [sh, -c, '{command}'], resources: {{limits: {{nvidia.com/gpu: 1}}}}}}"
    );
    let worker = container.replace(command, "sleep 1");
    let text = format!(
        "kind: LeaderWorkerSet\nspec: {{leaderWorkerTemplate: {{size: 2, leaderTemplate: {{spec: {{containers: [{container}]}}}}, \
         workerTemplate: {{spec: {{containers: [{worker}]}}}}}}}}\n"
    );
    let found = manifest::read("m.yaml", text.as_bytes()).unwrap();
    assert_eq!((found.len(), found[0].gpus), (1, Some(1)), "{found:?}");
    let found = answer(&found[0], models(MODEL), &on("h100")).map_err(|error| error.to_string());
    match expected {
        Some(expected) => assert!(found.unwrap_err().contains(expected)),
        None => assert_eq!(found.unwrap().starts, Starts::Yes),
    }
}

/// With memory that CUDA shares with the host's, what a device does not hold is no failure.
#[test]
fn llama_cpp_swaps_where_its_variable_says_so() {
    let command = "llama-server -m m -c 3000000 -np 1 --fit off";
    let fails = told(command, "h100").unwrap();
    assert!(fails.reason.is_some_and(|reason| reason.contains("cudaMalloc failed")));
    let found = told(&format!("env GGML_CUDA_ENABLE_UNIFIED_MEMORY=0 {command}"), "h100").unwrap();
    assert_eq!(found.starts, Starts::Yes, "{:?}", found.reason);
    assert!(found.notes.iter().any(|note| note.contains("GGML_CUDA_ENABLE_UNIFIED_MEMORY")), "{:?}", found.notes);
}

/// More devices than a usual node has are those of all nodes together.
#[rstest]
#[case("sglang serve --model-path m --tp 16 --nnodes 2", "16xh100", None)]
#[case("sglang serve --model-path m --tp 16 --nnodes 2", "8xh100", None)]
#[case("vllm serve m -tp 8 -pp 2 --nnodes 2", "16xh100", None)]
#[case("vllm serve m -tp 8 --nnodes 2", "16xh100", Some("uses 4 of the 8 GPUs"))]
#[case("vllm serve m -tp 8", "16xh100", Some("uses 8 of the 16 GPUs"))]
#[case("vllm serve m -tp 4 -dp 4 -dpl 2", "16xh100", None)]
#[case("vllm serve m -tp 4 -dp 4 -dpl 1", "32xh100", Some("uses 4 of the 8 GPUs"))]
fn devices_of_several_nodes_are_idle_where_no_rank_has_them(
    #[case] command: &str,
    #[case] devices: &str,
    #[case] said: Option<&str>,
) {
    let found = answer(&launch(command), models("meta-llama__Llama-3.1-70B-Instruct"), &on(devices)).unwrap();
    let idle: Vec<&String> = found.notes.iter().filter(|note| note.contains("idle")).collect();
    match said {
        Some(said) => assert!(idle.len() == 1 && idle[0].contains(said), "{idle:?}"),
        None => assert!(idle.is_empty(), "{idle:?}"),
    }
}
