//! Manifests in the forms that projects publish, what is read of each, and what is said of those that are not.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use cacheplan_serve::manifest;
use rstest::rstest;

/// What is read of a manifest, or why it is not.
fn dump(name: &str, bytes: &[u8]) -> String {
    let launches = match manifest::read(name, bytes) {
        Ok(launches) => launches,
        Err(error) => return format!("refused: {error}\n"),
    };
    let mut out = String::new();
    for launch in launches {
        writeln!(out, "{}\n  {launch}", launch.place).unwrap();
        for (key, value) in &launch.config {
            writeln!(out, "  {key}: {value}").unwrap();
        }
        let gpus = launch.gpus.map_or("-".to_owned(), |gpus| gpus.to_string());
        writeln!(out, "  gpus {gpus}, device {}", launch.device.as_deref().unwrap_or("-")).unwrap();
    }
    out
}

/// The file of this name is read, or refused, as its snapshot says.
fn check(name: &str, expected: &str) {
    let bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests").join(name)).unwrap();
    let found = dump(name, &bytes);
    assert_eq!(found.starts_with("refused"), expected == "refused", "{found}");
    assert!(!found.contains("sesame") && !found.contains("hf_0123"), "{found}");
    insta::with_settings!({ snapshot_path => "manifests/snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, found);
    });
}

#[rstest]
#[case("bad_args.yaml", "refused")]
#[case("bad_branch.sh", "refused")]
#[case("bad_compose_anchor.yaml", "refused")]
#[case("bad_compose_unset.yaml", "refused")]
#[case("bad_condition.sh", "refused")]
#[case("bad_condition_array.sh", "refused")]
#[case("bad_config_template.yaml", "refused")]
#[case("bad_document.sh", "refused")]
#[case("bad_duplicate.yaml", "refused")]
#[case("bad_gpus.yaml", "refused")]
#[case("bad_kserve_backend.yaml", "refused")]
#[case("bad_llm_base.yaml", "refused")]
#[case("bad_loop.sh", "refused")]
#[case("bad_nested_quote.yaml", "refused")]
#[case("bad_no_shell.yaml", "refused")]
#[case("bad_nothing.yaml", "refused")]
#[case("bad_pattern.sh", "refused")]
#[case("bad_quote.sh", "refused")]
#[case("bad_ray_file.yaml", "refused")]
#[case("bad_secret_flag.yaml", "refused")]
#[case("bad_substitution.sh", "refused")]
#[case("bad_tag.yaml", "refused")]
#[case("bad_template.yaml", "refused")]
#[case("bad_template_flag.yaml", "refused")]
#[case("bad_template_value.yaml", "refused")]
#[case("bad_unset.sh", "refused")]
#[case("compose.yaml", "read")]
#[case("deployment.yaml", "read")]
#[case("docker_run.sh", "read")]
#[case("dynamo.yaml", "read")]
#[case("kserve.yaml", "read")]
#[case("list.json", "read")]
#[case("llm_d.yaml", "read")]
#[case("llm_inference_service.yaml", "read")]
#[case("lws.yaml", "read")]
#[case("placeholder.sh", "read")]
#[case("production_stack.yaml", "read")]
#[case("prompt.txt", "read")]
#[case("ray.yaml", "read")]
#[case("ray_service.yaml", "read")]
#[case("sglang.sh", "read")]
#[case("sglang_config.yaml", "read")]
#[case("trtllm_appended.sh", "read")]
#[case("trtllm_config.yaml", "read")]
#[case("trtllm_heredoc.sh", "read")]
#[case("vllm.sh", "read")]
#[case("vllm_config.yaml", "read")]
fn a_manifest_is_read_as_its_platform_reads_it(#[case] name: &str, #[case] expected: &str) {
    check(name, expected);
}

fn read(name: &str, text: &str) -> Vec<cacheplan_serve::Launch> {
    manifest::read(name, text.as_bytes()).unwrap()
}

fn dynamo(more: &str) -> String {
    format!(
        "{{kind: DynamoGraphDeployment, spec: {{services: {{w: {{{more}, resources: {{limits: {{gpu: '8'}}}}, extraPodSpec: \
         {{mainContainer: {{image: 'nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.5.1', command: [python3, -m, dynamo.vllm], \
         args: [--model, m]}}}}}}}}}}}}"
    )
}

fn group(size: u32, leader: &str, worker: &str) -> String {
    let pod = |gpus: &str, args: &str| {
        format!("{{spec: {{containers: [{{args: [{args}], resources: {{limits: {{{gpus}}}}}}}]}}}}")
    };
    let (leader, worker) = (pod(leader, "vllm, serve, m"), pod(worker, "sleep"));
    format!(
        "{{kind: LeaderWorkerSet, spec: {{leaderWorkerTemplate: {{size: {size}, leaderTemplate: {leader}, workerTemplate: \
         {worker}}}}}}}"
    )
}

#[rstest]
#[case::dynamo_alone(&dynamo("replicas: 2"), Some(8))]
#[case::dynamo_on_two(&dynamo("multinode: {nodeCount: 2}"), Some(16))]
#[case::group_of_two(&group(2, "nvidia.com/gpu: 8", "nvidia.com/gpu: 8"), Some(8))]
#[case::group_of_three(&group(3, "nvidia.com/gpu: 4", "nvidia.com/gpu: 8"), Some(4))]
#[case::workers_that_say_nothing(&group(2, "nvidia.com/gpu: 8", ""), Some(8))]
#[case::llm_d(
    "{multinode: true, modelArtifacts: {uri: 'hf://a/b', name: m}, decode: {parallelism: {data: 16, dataLocal: 8}, containers: [{image: 'ghcr.io/llm-d/llm-d-cuda:v0.5.0', modelCommand: vllmServe}]}}",
    Some(8)
)]
fn the_gpus_are_those_of_all_that_a_controller_joins(#[case] text: &str, #[case] gpus: Option<u32>) {
    let found = read("m.yaml", text);
    assert_eq!((found.len(), found[0].gpus), (1, gpus), "{found:?}");
}

const STACK: &str = "servingEngineSpec: {modelSpec: [{modelURL: m, repository: vllm/vllm-openai, tag: TAG}]}";
const LLM_D: &str = "modelArtifacts: {uri: 'hf://a/b', name: m}\ndecode: {containers: [{image: 'ghcr.io/llm-d/llm-d-cuda:TAG', modelCommand: vllmServe}]}";
const KSERVE: &str = "{kind: LLMInferenceService, spec: {model: {uri: 'hf://a/b'}, template: {containers: [{name: main, image: 'vllm/vllm-openai:TAG'}]}}}";

#[rstest]
#[case(&STACK.replace("TAG", "v0.24.0"), Some("0.24.0"), None)]
#[case(&STACK.replace("TAG", "latest"), None, Some("vllm/vllm-openai:latest"))]
#[case(&LLM_D.replace("TAG", "v0.5.0"), None, Some("ghcr.io/llm-d/llm-d-cuda:v0.5.0"))]
#[case(&KSERVE.replace("TAG", "v0.24.0.post1"), Some("0.24.0.post1"), None)]
#[case(&dynamo("replicas: 1"), Some("0.28.0"), None)]
#[case("docker run vllm/vllm-openai:v0.10.1.1 --model m", Some("0.10.1.1"), None)]
#[case("vllm serve m", None, None)]
fn an_image_says_the_version_or_that_it_does_not(
    #[case] text: &str,
    #[case] version: Option<&str>,
    #[case] image: Option<&str>,
) {
    let found = read("m", text);
    assert_eq!(
        (found[0].version.as_deref(), found[0].image.as_deref().filter(|_| version.is_none())),
        (version, image)
    );
}

const BASE: &str = "services:\n  base:\n    image: vllm/vllm-openai:v0.24.0\n    command: --model m -tp 2\n    environment: {A: '1', B: '1'}\n    deploy: {resources: {reservations: {devices: [{count: 2}]}}}\n  v:\n    extends: ";

#[test]
fn a_service_of_compose_takes_what_it_extends() {
    let found = read("c.yaml", &format!("{BASE}{{service: base}}\n    command: --model n\n    environment: [B=2]\n"));
    assert_eq!(found[1].to_string(), "A=1 B=2 vllm serve --model n");
    assert_eq!((found[1].version.as_deref(), found[1].gpus), (Some("0.24.0"), Some(2)));
    assert_eq!(read("c.yaml", &format!("{BASE}base\n"))[1].words, found[0].words);
}

#[rstest]
#[case(
    "{file: a.yaml, service: b}",
    "c.yaml:8: services.v.extends: a service that extends one of another file is not read"
)]
#[case("{service: other}", "a service that extends one that is not there")]
#[case("{service: v}", "a service that extends itself")]
#[case("{service: base}\n    gpus: [{count: 1}]", "devices beside those of the service that is extended")]
fn what_a_service_extends_is_read_or_refused(#[case] extends: &str, #[case] expected: &str) {
    let error = manifest::read("c.yaml", format!("{BASE}{extends}\n").as_bytes()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case("s.sh", "[ -d x ] && vllm serve m", "vllm serve m")]
#[case("-", "[ -d x ] && vllm serve m", "vllm serve m")]
#[case("-", "[[ -d x ]] && vllm serve m", "vllm serve m")]
#[case("-", "[ \"$A\" = b ] && vllm serve m", "vllm serve m")]
#[case("-", "{ vllm serve m; }", "vllm serve m")]
#[case("-", ": ${N:=4096}\nvllm serve m --max-model-len $N", "vllm serve m --max-model-len 4096")]
#[case("-", "N=8\n: ${N:=4096}\nvllm serve m --max-model-len $N", "vllm serve m --max-model-len 8")]
#[case("-", "{ \"model\": \"m\", \"max-model-len\": 8 }", "vllm serve m --max-model-len 8")]
#[case("-", "{ model: m, max-model-len: 8 }", "vllm serve m --max-model-len 8")]
fn a_script_is_told_from_yaml(#[case] name: &str, #[case] text: &str, #[case] expected: &str) {
    assert_eq!(read(name, text)[0].words.join(" "), expected);
}

#[rstest]
#[case("f() { vllm serve m; }")]
#[case("f()\n{\n vllm serve m\n}")]
#[case("function f {\n vllm serve m\n}")]
fn the_body_of_a_function_runs_where_it_is_called(#[case] text: &str) {
    let error = manifest::read("s.sh", text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("under a condition (`{`)"), "{error}");
}

#[rstest]
#[case::subshell("(N=8192)", Ok("4096"))]
#[case::subshells("(N=1)(N=2; (N=3))", Ok("4096"))]
#[case::body("f() { echo; }; N=8192", Ok("8192"))]
#[case::text("eval \"N=8192\"", Ok("8192"))]
#[case::computed("((N*=2))", Err("is computed by the shell"))]
#[case::counted("let N=N*2", Err("is computed by the shell"))]
#[case::compared("((N >= 2048)) && echo", Ok("4096"))]
#[case::printed("printf -v N %s 8192", Err("is what another command prints"))]
#[case::sourced("source ./env.sh", Err("may be set by a file that is sourced"))]
#[case::activated("source .venv/bin/activate", Ok("4096"))]
fn what_changes_a_variable_is_followed_or_named(#[case] line: &str, #[case] expected: Result<&str, &str>) {
    let script = format!("N=4096\n{line}\nvllm serve m --max-model-len $N\n");
    match (manifest::read("s.sh", script.as_bytes()), expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found[0].words.last().unwrap(), expected),
        (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
}

#[test]
fn every_command_of_a_script_is_found() {
    let script = "C=\"vllm serve m --max-num-seqs 3\"\neval $C\nnohup $C --max-model-len 4096 &\n";
    let found: Vec<usize> = read("s.sh", script).iter().map(|launch| launch.words.len()).collect();
    assert_eq!(found, [5, 7]);
    let script =
        "start \"a\" /B llama-server -m a\nstart /B \"b\" llama-server.exe -m b\nstart /D C:\\x llama-server -m c\n";
    let found: Vec<String> = read("s.cmd", script).iter().map(|launch| launch.words[2].clone()).collect();
    assert_eq!(found, ["a", "b", "c"]);
    let endless = manifest::read("s.sh", b"X='eval \"$X\"'\neval \"$X\"\nvllm serve m\n").unwrap_err();
    assert!(endless.to_string().contains("`eval`"), "{endless}");
}

/// A line's end that is no part of it ends a command: the flags behind it reach nobody.
#[rstest]
#[case::blank("vllm serve m\n--max-model-len 4096\n\n--max-num-seqs 64\n--api-key=sesame", &["--max-num-seqs"])]
#[case::whole("vllm serve m\n--max-model-len 4096\n--max-num-seqs 64\n\n", &[])]
fn flags_behind_the_end_of_a_command_are_named(#[case] folded: &str, #[case] expected: &[&str]) {
    let text = folded.replace('\n', "\n        ");
    let pod = format!(
        "kind: Pod\nspec:\n  containers:\n    - name: vllm\n      command: [\"sh\", \"-c\"]\n      args:\n      - >-\n        {text}\n"
    );
    let found = read("pod.yaml", &pod).remove(0);
    assert_eq!(found.cut, expected);
    assert_eq!(found.words.contains(&"64".to_owned()), expected.is_empty(), "{found:?}");
}

#[test]
fn flags_on_lines_of_their_own_are_counted() {
    let found = read("s.sh", "vllm serve m\n--max-model-len 4096\n--api-key=sesame\necho\n").remove(0);
    assert_eq!(found.cut, ["--max-model-len", "--api-key"]);
    assert!(!format!("{found:?}").contains("sesame"));
}

#[rstest]
#[case("export HF_TOKEN=sesame\nvllm serve m --served-model-name $HF_TOKEN -tp 3")]
#[case("HF_TOKEN=sesame\nN=$HF_TOKEN\nvllm serve m --max-model-len=$N")]
#[case("HF_TOKEN=sesame\nbash -c \"vllm serve m --max-model-len $HF_TOKEN\"")]
#[case("KEY=sesame; vllm serve m --api-key $KEY --port $KEY --max-model-len=$KEY")]
fn what_is_a_secret_is_hidden_wherever_its_variable_stands(#[case] script: &str) {
    let found = &read("s.sh", script)[0];
    assert!(!found.words.iter().any(|word| word.contains("sesame")), "{:?}", found.words);
    assert!(found.words.iter().any(|word| word.ends_with("<hidden>")), "{:?}", found.words);
}

/// What `vllm serve m` sees behind these lines, or why it is not known.
#[rstest]
#[case::before_it_is_set("export CUDA_VISIBLE_DEVICES\nCUDA_VISIBLE_DEVICES=0", Ok("CUDA_VISIBLE_DEVICES=0 "))]
#[case::no_more("export A\nunset A\nA=1", Ok(""))]
#[case::all("set -a\nCUDA_VISIBLE_DEVICES=0\nset +a\nB=1", Ok("CUDA_VISIBLE_DEVICES=0 "))]
#[case::all_by_name("set -euo allexport; A=0; set +o allexport; B=1", Ok("A=0 "))]
#[case::all_of_another_shell("(set -a)\nA=1", Ok(""))]
#[case::computed("export CUDA_VISIBLE_DEVICES=$(seq -s, 0 0)", Err("is what another command prints"))]
#[case::not_set("export CUDA_VISIBLE_DEVICES=$GPUS", Err("`$GPUS` is not set"))]
#[case::argument("export CUDA_VISIBLE_DEVICES=$1", Err("`$1` is an argument of the script"))]
#[case::condition("if [ x ]; then export CUDA_VISIBLE_DEVICES=0; fi", Err("is set under a condition"))]
#[case::flag("export LLAMA_ARG_CTX_SIZE=$(x)", Err("is what another command prints"))]
#[case::harmless("export HF_TOKEN=$(x) VLLM_HOST_IP=$(hostname -i) LLAMA_ARG_HOST=$H LLAMA_API_KEY=$K", Ok(""))]
#[case::its_own("CUDA_VISIBLE_DEVICES=$(x)", Ok(""))]
fn a_variable_that_is_read_is_known_or_named(#[case] lines: &str, #[case] expected: Result<&str, &str>) {
    match (manifest::read("s.sh", format!("{lines}\nvllm serve m\n").as_bytes()), expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found[0].to_string(), format!("{expected}vllm serve m")),
        (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
}

#[test]
fn a_variable_in_front_of_a_command_is_known_too() {
    for command in
        ["CUDA_VISIBLE_DEVICES=$(x)", "env CUDA_VISIBLE_DEVICES=$(x)", "docker run -e CUDA_VISIBLE_DEVICES=$X i"]
    {
        let error = manifest::read("s.sh", format!("{command} vllm serve m\n").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("is what another command prints") || error.contains("`$X` is not set"), "{error}");
    }
}

#[rstest]
#[case("L=\nvllm serve m ${L-1} ${M-2}", "2")]
#[case("L=\nvllm serve m ${L:-1} ${M:-2}", "1 2")]
#[case("L=\n: ${L=1} ${M=2}\nvllm serve m $L $M", "2")]
#[case("L=\n: ${L:=1} ${M:=2}\nvllm serve m $L $M", "1 2")]
fn a_default_stands_for_an_empty_value_behind_a_colon(#[case] script: &str, #[case] expected: &str) {
    assert_eq!(read("s.sh", script)[0].words[3..].join(" "), expected);
}

#[rstest]
#[case("--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0", "runtime: nvidia", "'0'", Some(1))]
#[case("--runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0,2", "runtime: nvidia", "0,2", Some(2))]
#[case("--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=all", "runtime: nvidia", "all", None)]
#[case("--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=none", "runtime: nvidia", "none", Some(0))]
#[case("-e NVIDIA_VISIBLE_DEVICES=0", "tty: true", "'0'", None)]
#[case("--runtime nvidia --gpus 2 -e NVIDIA_VISIBLE_DEVICES=0", "runtime: nvidia, gpus: [{count: 2}]", "'0'", Some(2))]
fn a_runtime_gives_the_gpus_that_a_variable_names(
    #[case] options: &str,
    #[case] keys: &str,
    #[case] listed: &str,
    #[case] gpus: Option<u32>,
) {
    let run = format!("docker run {options} vllm/vllm-openai:v0.33.0 --model m\n");
    let compose = format!(
        "services: {{v: {{image: 'vllm/vllm-openai:v0.33.0', command: --model m, {keys}, environment: {{NVIDIA_VISIBLE_DEVICES: {listed:?}}}}}}}"
    );
    let compose = compose.replace("\"'", "'").replace("'\"", "'");
    assert_eq!((read("s.sh", &run)[0].gpus, read("c.yaml", &compose)[0].gpus), (gpus, gpus));
}

/// Arguments of a container whose `env` has these.
fn container(env: &str, command: &str) -> Result<Vec<String>, String> {
    let pod = format!("{{kind: Pod, spec: {{containers: [{{command: {command}, env: [{env}]}}]}}}}");
    let found = manifest::read("p.yaml", pod.as_bytes()).map_err(|error| error.to_string())?;
    Ok(found[0].words[3..].to_vec())
}

#[rstest]
#[case("{name: L, value: '1'}", "[vllm, serve, m, $$(L), $(L)]", Ok("$(L) 1"))]
#[case("{name: L, value: '1'}", "[sh, -c, 'vllm serve m $$L $(L)']", Ok("1 1"))]
#[case(
    "{name: L, value: '$$(K)'}, {name: K, value: '1'}",
    "[vllm, serve, m, --max-model-len=$(L)]",
    Ok("--max-model-len=$(K)")
)]
#[case("{name: K, value: '1'}, {name: L, value: $(K)}", "[vllm, serve, m, $(L)]", Ok("1"))]
#[case(
    "{name: L, value: $(K)}, {name: K, value: '1'}",
    "[vllm, serve, m, $(L)]",
    Err("`$(K)` is set only behind what names it in `env`")
)]
#[case("", "[vllm, serve, m, $(L)]", Err("`$(L)` is not set"))]
fn a_container_is_started_with_what_kubernetes_makes_of_its_words(
    #[case] env: &str,
    #[case] command: &str,
    #[case] expected: Result<&str, &str>,
) {
    match (container(env, command), expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found.join(" "), expected),
        (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
}

#[rstest]
#[case("max-model-len: 2048", "ray would not start: Unknown engine argument: max-model-len")]
#[case("no_enable_prefix_caching: true", "Unknown engine argument: no_enable_prefix_caching")]
#[case("use_tqdm: true", "Unknown engine argument: use_tqdm")]
#[case("tp: 2", "Unknown engine argument: tp")]
#[case("bogus: ~", "Unknown engine argument: bogus")]
#[case("max_model_len: 2k", "1 validation error for ModelConfig: max_model_len: Input should be a valid integer")]
#[case("tensor_parallel_size: two", "1 validation error for ParallelConfig: tensor_parallel_size: Input should be")]
#[case("model: /x", "model or served_model_name is not allowed in engine_kwargs")]
#[case("served_model_name: x", "model or served_model_name is not allowed in engine_kwargs")]
#[case("distributed_executor_backend: mp", "distributed_executor_backend != 'ray' is not allowed in engine_kwargs")]
#[case("seed: 1}, use_cpu: true, x: {y: 1", "an engine on the processor (`use_cpu`) is not read")]
fn what_ray_takes_for_no_argument_of_an_engine_is_refused_in_its_words(#[case] arguments: &str, #[case] said: &str) {
    let text = format!("llm_configs: [{{model_loading_config: {{model_id: m}}, engine_kwargs: {{{arguments}}}}}]");
    let error = manifest::read("r.yaml", text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(said), "{error}");
}

#[test]
fn every_field_that_ray_hands_on_is_a_flag() {
    let arguments = "max_model_len: 2048, tensor_parallel_size: 2, gpu_memory_utilization: 0.9, enforce_eager: true, \
                     enable_prefix_caching: false, distributed_executor_backend: ray, dtype: bfloat16, seed: ~, \
                     hf_overrides: {a: 1}, port: 80, kv_cache_dtype: fp8, max_num_seqs: 8";
    let text = format!("llm_configs: [{{model_loading_config: {{model_id: m}}, engine_kwargs: {{{arguments}}}}}]");
    let found = read("r.yaml", &text)[0].to_string();
    assert!(found.contains("--max-model-len 2048") && found.contains("--no-enable-prefix-caching"), "{found}");
}
