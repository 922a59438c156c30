//! Variables and versions that come from where nothing is read: they are never passed over.

mod common;

use cacheplan_serve::{Launch, Options, answer, manifest};
use common::{models, on};
use rstest::rstest;

fn read(name: &str, text: &str) -> Result<Launch, String> {
    manifest::read(name, text.as_bytes()).map(|mut found| found.remove(0)).map_err(|error| error.to_string())
}

const POD: &str = "kind: Pod\nspec:\n  containers:\n  - command: [llama-server, -m, m.gguf]\n    envFrom:\n";

/// The answer hangs on what the file sets, and is given.
#[rstest]
#[case::sourced("s.sh", "set -a; . ./a.env; set +a\nllama-server -m m.gguf", "`source ./a.env` (line 1)")]
#[case::sourced_by_name("s.sh", "set -a\nsource $DIR/a.env\nllama-server -m m.gguf", "`source` (line 2)")]
#[case::printed("s.sh", "export $(cat a.env | xargs)\nllama-server -m m.gguf", "`export` (line 1)")]
#[case::evaluated("s.sh", "eval \"$(cat a.env)\"\nllama-server -m m.gguf", "`eval` (line 1)")]
#[case::read_by_lines(
    "s.sh",
    "while read -r l; do export \"$l\"; done < a.env\nllama-server -m m.gguf",
    "`export` (line 1)"
)]
#[case::in_a_function("s.sh", "load() { . a.env; }\nLEN=1\nload\nllama-server -m m.gguf", "`load` (line 3)")]
#[case::in_front("s.sh", "env $(cat a.env) llama-server -m m.gguf", "`env` (line 1)")]
#[case::docker(
    "s.sh",
    "docker run --env-file a.env ghcr.io/ggml-org/llama.cpp:server-cuda -m m.gguf",
    "`--env-file a.env`"
)]
#[case::batch("a.bat", "call a.bat\nllama-server -m m.gguf\n", "`call a.bat` (line 1)")]
#[case::batch_by_lines("a.bat", "for /f %%i in (a.env) do set %%i\nllama-server -m m.gguf\n", "`set` (line 1)")]
#[case::power_shell("a.ps1", ". .\\a.ps1\nllama-server -m m.gguf\n", "`. .\\a.ps1` (line 1)")]
#[case::power_shell_by_lines(
    "a.ps1",
    "Get-Content a.env | ForEach-Object {\n  $n, $v = $_.Split('=')\n  Set-Item -Path \"env:$n\" -Value $v\n}\nllama-server -m m.gguf\n",
    "`$env:` (line 3)"
)]
#[case::unit(
    "a.service",
    "[Service]\nEnvironmentFile=-/etc/a\nExecStart=llama-server -m m.gguf\n",
    "`EnvironmentFile=-/etc/a` (line 2)"
)]
#[case::compose(
    "c.yaml",
    "services:\n  a:\n    image: ghcr.io/ggml-org/llama.cpp:server-cuda\n    command: -m m.gguf\n    env_file:\n    - path: a.env\n",
    "`env_file a.env` (line 6)"
)]
#[case::a_map("p.yaml", &format!("{POD}    - configMapRef: {{name: llama}}\n"), "`envFrom llama` (line 6)")]
#[case::a_secret("p.yaml", &format!("{POD}    - secretRef: {{name: llama}}\n"), "`envFrom llama` (line 6)")]
fn an_answer_says_that_it_hangs_on_variables_that_are_not_read(
    #[case] name: &str,
    #[case] text: &str,
    #[case] expected: &str,
) {
    let found = read(name, text).unwrap();
    let [caution] = &*found.cautions else { panic!("{:?}", found.cautions) };
    assert!(caution.contains(expected), "{caution}");
    assert!(caution.contains("LLAMA_ARG_CTX_SIZE,") && !caution.contains("VLLM_"), "{caution}");
    // What a flag states is not theirs to say.
    let stated = text.replace("-m m.gguf", "-m m.gguf -c 4096").replace("-m, m.gguf", "-m, m.gguf, --ctx-size=4096");
    let [caution] = &*read(name, &stated).unwrap().cautions else { panic!() };
    assert!(!caution.contains("LLAMA_ARG_CTX_SIZE,") && caution.contains("LLAMA_ARG_N_PARALLEL"), "{caution}");
}

/// What is said behind or over the file is known.
#[rstest]
#[case("s.sh", ". a.env\nexport LLAMA_ARG_CTX_SIZE=4096\nllama-server -m m.gguf")]
#[case("s.sh", "docker run -e LLAMA_ARG_CTX_SIZE=4096 --env-file a ghcr.io/ggml-org/llama.cpp:server-cuda -m m.gguf")]
#[case("p.yaml", &format!("{POD}    - secretRef: {{name: llama}}\n    env: [{{name: LLAMA_ARG_CTX_SIZE, value: '4096'}}]\n"))]
fn what_stands_over_a_file_is_known(#[case] name: &str, #[case] text: &str) {
    let found = read(name, text).unwrap();
    assert_eq!(found.env["LLAMA_ARG_CTX_SIZE"], "4096");
    assert!(!found.cautions[0].contains("LLAMA_ARG_CTX_SIZE,"), "{:?}", found.cautions);
}

/// A word of the command that such a file may have made is refused.
#[rstest]
#[case::a_default(". a.env\nvllm serve m --max-model-len ${L:-4096}", "`$L` (line 1) may be set by a file")]
#[case::a_default_of_nothing(". a.env\nvllm serve m ${EXTRA:-}", "`$EXTRA` (line 1) may be set")]
#[case::a_default_of_unset(". a.env\nvllm serve m --max-model-len ${L-4096}", "`$L` (line 1) may be set")]
#[case::assigned(". a.env\n: ${L:=4096}\nvllm serve m --max-model-len $L", "`$L` (line 1) may be set")]
#[case::added(". a.env\nA+=' -tp 2'\nvllm serve m $A", "`$A` (line 1) may be set")]
#[case::exported("export L=1\n. a.env\nvllm serve m --max-model-len $L", "`$L` (line 2) may be set")]
#[case::evaluated("eval \"$(cat .env)\"\nvllm serve m --max-model-len ${L:-4096}", "`$L` (line 1) may be set")]
#[case::printed("export $(xargs < .env)\nvllm serve m --max-model-len ${L:-4096}", "`$L` (line 1) may be set")]
#[case::in_a_shell(
    "docker run --env-file a --entrypoint bash i -c 'vllm serve m --max-model-len ${L:-4096}'",
    "`$L` (line 1) may be set"
)]
#[case::handed_on("docker run -e LLAMA_ARG_CTX_SIZE i llama-server -m m", "`$LLAMA_ARG_CTX_SIZE` is not set")]
fn a_word_that_a_file_may_have_made_is_refused(#[case] text: &str, #[case] expected: &str) {
    let error = read("s.sh", text).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::another_folder("(. a.env)\nvllm serve m --max-model-len ${L:-4096}", "4096")]
#[case::set_behind(". a.env\nL=8192\nvllm serve m --max-model-len ${L:-4096}", "8192")]
#[case::written_here("cat > a.env <<'EOF'\nL=2048\nEOF\n. a.env\nvllm serve m --max-model-len ${L:-4096}", "2048")]
#[case::harmless(". a.env\nvllm serve m --port ${PORT:-8000} --max-model-len 1024", "1024")]
fn a_word_that_no_file_has_made_is_known(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(read("s.sh", text).unwrap().words.last().unwrap(), expected);
}

/// `sudo` starts a program without the variables of the script.
#[rstest]
#[case("sudo", None)]
#[case("sudo -u nobody -n", None)]
#[case("sudo --user nobody", None)]
#[case("sudo --preserve-env=HOME", None)]
#[case("sudo -E", Some("1"))]
#[case("sudo -nE -u root", Some("1"))]
#[case("sudo --preserve-env", Some("1"))]
#[case("sudo --preserve-env=HOME,LLAMA_ARG_CTX_SIZE", Some("1"))]
#[case("sudo LLAMA_ARG_CTX_SIZE=2", Some("2"))]
#[case("sudo env LLAMA_ARG_CTX_SIZE=2", Some("2"))]
#[case("sudo bash -c 'llama-server -m m'; true", None)]
fn sudo_hands_on_what_it_is_told_to(#[case] command: &str, #[case] expected: Option<&str>) {
    let found = read("s.sh", &format!("export LLAMA_ARG_CTX_SIZE=1\n{command} llama-server -m m\n")).unwrap();
    assert_eq!(found.env.get("LLAMA_ARG_CTX_SIZE").map(String::as_str), expected);
    assert_eq!(found.cautions.iter().any(|caution| caution.starts_with("`sudo` starts")), expected.is_none());
}

/// What names an engine's command and is not read is said beside those that are.
#[rstest]
#[case("tmux new-session -d 'vllm serve m'", Some("`tmux` (line 1)"))]
#[case("tmux send-keys -t a 'vllm serve m --port 1' Enter", Some("`tmux` (line 1)"))]
#[case("apptainer run --nv docker://vllm/vllm-openai:v0.33.0 --model m", Some("`apptainer` (line 1)"))]
#[case("su - a -c \"llama-server -m m\"", Some("`su` (line 1)"))]
#[case("doppler run -- vllm serve m", Some("`doppler` (line 1)"))]
#[case("echo 'vllm serve m'", None)]
#[case("pkill -f 'vllm serve m'", None)]
#[case("systemctl restart llama-server", None)]
#[case("pip install vllm", None)]
fn a_command_that_is_passed_over_is_named(#[case] line: &str, #[case] expected: Option<&str>) {
    let found = read("s.sh", &format!("{line}\nvllm serve n\n")).unwrap();
    assert_eq!(found.cautions.len(), usize::from(expected.is_some()), "{:?}", found.cautions);
    assert!(expected.is_none_or(|expected| found.cautions[0].contains(expected)), "{:?}", found.cautions);
    let error = read("s.sh", &format!("{line}\n")).unwrap_err();
    assert!(expected.is_none_or(|expected| error.contains(expected)), "{error}");
}

#[rstest]
#[case("uvx vllm@0.33.0 serve m", Some("0.33.0"))]
#[case("uvx vllm@latest serve m", None)]
#[case("/home/a@1/bin/vllm serve m", None)]
fn a_version_behind_the_program_is_read(#[case] text: &str, #[case] version: Option<&str>) {
    let found = read("s.sh", text).unwrap();
    assert_eq!((found.words[1..].join(" ").as_str(), found.version.as_deref()), ("serve m", version));
    assert!(found.words[0].ends_with("vllm"), "{found:?}");
}

const POD_OF_SHELL: &str = "kind: Pod\nspec:\n  containers:\n  - command: [bash, -c]\n    args: ['pip install vllm==0.28.0 && vllm serve m']\n";
const FROM: &str = "FROM nvidia/cuda:12.9.0-runtime";
const CMD: &str = "CMD [\"vllm\", \"serve\", \"m\"]";

/// What a file installs in front of a command is the version that runs.
#[rstest]
#[case::script("s.sh", "pip install vllm==0.28.0\nvllm serve m", Some("0.28.0"))]
#[case::behind_others("s.sh", "apt update && uv pip install --system 'vllm==0.28.0' && vllm serve m", Some("0.28.0"))]
#[case::by_a_variable("s.sh", "V=0.28.0\npython3 -m pip install vllm==${V}\nvllm serve m", Some("0.28.0"))]
#[case::the_last("s.sh", "pip install vllm==0.24.0\npip install vllm==0.28.0\nvllm serve m", Some("0.28.0"))]
#[case::written_out("s.sh", "cat > r.txt <<EOF\nvllm==0.28.0\nEOF\npip install -r r.txt\nvllm serve m", Some("0.28.0"))]
#[case::of_a_shell("p.yaml", POD_OF_SHELL, Some("0.28.0"))]
#[case::dockerfile("Dockerfile", &format!("{FROM}\nRUN pip install vllm==0.28.0\n{CMD}\n"), Some("0.28.0"))]
#[case::dockerfile_by_an_argument(
    "Dockerfile",
    &format!("{FROM}\nARG V=0.28.0\nRUN apt-get update && \\\n  pip install \"vllm==${{V}}\"\n{CMD}\n"),
    Some("0.28.0")
)]
#[case::over_the_image(
    "Dockerfile",
    "FROM vllm/vllm-openai:v0.24.0\nRUN pip install vllm==0.28.0\nCMD [\"m\"]\n",
    Some("0.28.0")
)]
#[case::of_another_stage("Dockerfile", &format!("FROM a AS b\nRUN pip install vllm==0.28.0\n{FROM}\n{CMD}\n"), None)]
#[case::of_another_engine("s.sh", "pip install sglang==0.5.10\nvllm serve m", None)]
#[case::behind_it("s.sh", "vllm serve m\npip install vllm==0.28.0", None)]
#[case::outside_of_the_container("s.sh", "pip install vllm==0.28.0\ndocker run vllm/vllm-openai --model m", None)]
fn what_is_installed_is_what_runs(#[case] name: &str, #[case] text: &str, #[case] version: Option<&str>) {
    let found = read(name, text).unwrap();
    assert_eq!((found.version.as_deref(), found.installs), (version, None));
}

/// Where that is not sure, the answer says which version is taken.
#[rstest]
#[case::a_range("s.sh", "pip install 'vllm>=0.28'\nvllm serve m", "`vllm>=0.28` (line 1)", "0.33.0")]
#[case::a_file("s.sh", "pip install -r r.txt\nvllm serve m", "`-r r.txt` (line 1)", "0.33.0")]
#[case::unset("s.sh", "pip install vllm==$V\nvllm serve m", "`vllm==$V` (line 1)", "0.33.0")]
#[case::maybe(
    "s.sh",
    "if ! command -v vllm; then\n  pip install vllm==0.28.0\nfi\nvllm serve m",
    "`vllm==0.28.0` (line 2)",
    "0.28.0"
)]
#[case::in_front("s.sh", "uv run --with 'vllm>=0.28' vllm serve m", "`vllm>=0.28`", "0.33.0")]
#[case::dockerfile(
    "Dockerfile",
    &format!("{FROM}\nRUN if true; then pip install vllm==0.28.0; fi\n{CMD}\n"),
    "`vllm==0.28.0` (line 2)",
    "0.28.0"
)]
#[case::windows("a.bat", "pip install vllm==0.28.0\nvllm serve m\n", "`vllm==0.28.0` (line 1)", "0.28.0")]
fn an_answer_says_which_version_is_taken(
    #[case] name: &str,
    #[case] text: &str,
    #[case] what: &str,
    #[case] version: &str,
) {
    let found = read(name, text).unwrap();
    let told = |options: &Options| answer(&found, models("Qwen__Qwen3-8B"), options).unwrap().cautions;
    let expected = format!("{what} does not settle which version of vllm runs: {version} is taken");
    let cautions = told(&on("h100"));
    assert!(cautions.iter().any(|caution| caution.starts_with(&expected)), "{cautions:?}");
    let cautions = told(&Options { version: Some("0.33.0".into()), ..on("h100") });
    assert!(!cautions.iter().any(|caution| caution.contains("does not settle")), "{cautions:?}");
}

/// Kubernetes takes a text alone, and so does this.
#[rstest]
#[case("4096", Some("a number"))]
#[case("0.9", Some("a number"))]
#[case("1e5", Some("a number"))]
#[case("-0x10", Some("a number"))]
#[case("1_000", Some("a number"))]
#[case("True", Some("true or false"))]
#[case("off", Some("true or false"))]
#[case("'4096'", None)]
#[case("v1", None)]
#[case("1.2.3", None)]
#[case("tRUE", None)]
#[case("4096k", None)]
fn kubernetes_takes_texts_alone(#[case] written: &str, #[case] kind: Option<&str>) {
    for (key, text) in [
        ("args[1]", format!("args: [--seed, {written}]")),
        ("env[0].value", format!("args: []\n    env: [{{name: A, value: {written}}}]")),
    ] {
        let found =
            read("p.yaml", &format!("kind: Pod\nspec:\n  containers:\n  - command: [vllm, serve, m]\n    {text}\n"));
        match (found, kind) {
            (Ok(_), None) => {}
            (Err(error), Some(kind)) => {
                assert!(
                    error.contains(&format!("containers[0].{key}: {kind}")) && error.contains("p.yaml:"),
                    "{error}"
                );
            }
            (found, _) => panic!("{written}: {found:?}"),
        }
    }
}
