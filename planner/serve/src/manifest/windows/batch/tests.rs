use rstest::rstest;

use crate::manifest;

#[rstest]
#[case::whole(
    "start.bat",
    "@echo off\r\nrem vllm serve none\r\nset \"MODEL=C:\\my models\\a.gguf\"\r\nset CUDA_VISIBLE_DEVICES=0\r\nC:\\llama\\llama-server.exe -m \"%model%\" ^\r\n  -c 8192 > log.txt 2>&1\r\npause\r\n",
    "CUDA_VISIBLE_DEVICES=0 MODEL=\"C:\\\\my models\\\\a.gguf\" \"C:\\\\llama\\\\llama-server.exe\" -m \"C:\\\\my models\\\\a.gguf\" -c 8192",
    5
)]
#[case::start("start.cmd", "start \"a server\" /b llama-server.exe -m a.gguf\n", "llama-server.exe -m a.gguf", 1)]
#[case::quoted("start.cmd", "start \"\" \"llama-server.exe\" -m a.gguf\n", "llama-server.exe -m a.gguf", 1)]
#[case::joined(
    "a.bat",
    "set CUDA_VISIBLE_DEVICES=1&& call llama-server.exe -m a.gguf & pause\n",
    "CUDA_VISIBLE_DEVICES=1 llama-server.exe -m a.gguf",
    1
)]
fn a_batch_file_starts_what_it_says(
    #[case] name: &str,
    #[case] text: &str,
    #[case] command: &str,
    #[case] line: usize,
) {
    let found = manifest::read(name, text.as_bytes()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].to_string(), found[0].place.clone()), (command.to_owned(), format!("{name}:{line}")));
}

/// What `vllm serve m` is handed behind these lines.
#[rstest]
#[case::multiplied("set LEN=2048\nset /a LEN*=2\nvllm serve m %LEN%", "4096")]
#[case::shifted("set /a \"LEN=1<<12\"\nvllm serve m %LEN%", "4096")]
#[case::remainder("set /a LEN=4097%%4096\nvllm serve m %LEN%", "1")]
#[case::scope("set LEN=4096\nsetlocal\nset LEN=2048\nendlocal\nvllm serve m %LEN%", "4096")]
#[case::a_blank_at_the_end("set LEN=2048 \nvllm serve m %LEN%0", "2048 0")]
#[case::blanks_in_front("set LEN= 2048\nvllm serve m --seed=%LEN%", "--seed= 2048")]
#[case::quotes_around("set \"LEN=2048\"  \nvllm serve m %LEN%0", "20480")]
#[case::quotes_within("set LEN=\"2048\"\nvllm serve m %LEN%0", "20480")]
#[case::another_name("set LEN=1\nset LEN =2\nvllm serve m %LEN%", "1")]
#[case::case("set len=1\nvllm serve m %Len%", "1")]
#[case::taken_away("set L=1\nset N=2\nset L=\nvllm serve m %N%", "2")]
#[case::a_part("set LEN=20480\nvllm serve m %LEN:~0,4%", "2048")]
#[case::the_end("set LEN=x2048\nvllm serve m %LEN:~-4%", "2048")]
#[case::replaced("set LEN=2k\nvllm serve m %LEN:K=048%", "2048")]
#[case::redirected("vllm serve m 2048 >log.txt", "2048")]
#[case::redirected_without_blanks("vllm serve m 2048>log.txt 2>&1 -x", "2048 -x")]
#[case::a_stream("vllm serve m 2048 2>log.txt", "2048")]
#[case::joined_without_blanks("vllm serve m 2048&echo x", "2048")]
#[case::piped("vllm serve m 2048|more", "2048")]
#[case::escaped("vllm serve m a^&b ^^ c^\nd", "a&b ^ cd")]
#[case::escaped_in_quotes("vllm serve m \"a^&b\"", "a^&b")]
#[case::json("vllm serve m \"{\\\"method\\\":\\\"ngram\\\"}\"", "{\"method\":\"ngram\"}")]
#[case::backslashes("vllm serve m \"C:\\a b\\\\\" C:\\c\\ \"d\"\"e\"", "C:\\a b\\ C:\\c\\ d\"e")]
#[case::a_line_is_read_whole("set A=1\nset A=2& vllm serve m %A%", "1")]
#[case::a_block_is_read_whole("set A=1\n(\nset A=2\nvllm serve m %A%\n)", "1")]
#[case::late("setlocal EnableDelayedExpansion\nset A=1\nset A=2& vllm serve m !A!", "2")]
#[case::twice("set A=B\nset B=2\ncall set C=%%%A%%%\nvllm serve m %C%", "2")]
#[case::apart("set A=1\nset A=2| more\nvllm serve m %A%", "1")]
#[case::a_script_within("cmd /c \"set A=2 & vllm serve m 3\"", "3")]
#[case::a_loop(":again\nset A=1\nvllm serve m %A%\ngoto again\nvllm serve n", "1")]
#[case::skipped("goto run\nvllm serve n\n:run\nvllm serve m 1", "1")]
#[case::a_guard("if not exist x goto none\nvllm serve m 1\ngoto :eof\n:none\necho none", "1")]
#[case::a_part_of_the_script("call :run\nexit /b\n:run\nvllm serve m 1\n", "1")]
#[case::both_ways("set A=1\nif exist x goto run\nset B=2\n:run\nvllm serve m %A%", "1")]
#[case::a_percent_sign("vllm serve m 50%% 5%", "50% 5")]
#[case::a_comment("vllm serve m 1 & rem & vllm serve n\n:: vllm serve o", "1")]
#[case::the_folder("\"%~dp0vllm\" serve m 1", "1")]
fn a_command_is_read_as_cmd_reads_it(#[case] text: &str, #[case] expected: &str) {
    let found = manifest::read("a.bat", text.as_bytes()).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0].words[2], found[0].words[3..].join(" ").as_str()), (&"m".to_owned(), expected));
}

#[rstest]
#[case("llama-server.exe -m %MODEL%\n", "`%MODEL%` is not set in the script")]
#[case("echo a & if exist x llama-server.exe -m a.gguf\n", "under a condition (`if`)")]
#[case("llama-server.exe -m m -np %1\n", "`%1` is an argument of the script")]
#[case("llama-server.exe -m m %*\n", "`%*` is an argument of the script")]
#[case("llama-server.exe -m %~dp0a.gguf\n", "`%~dp0` is known only where the script runs")]
#[case("if not exist x set M=a.gguf\nllama-server.exe -m %M%\n", "`%M%` (line 1) is set under a condition")]
#[case("if /i not \"%X%\"==\"a b\" call if exist \"c d\" llama-server.exe -m a.gguf\n", "under a condition (`if`)")]
#[case(
    "if exist x (\nset M=a.gguf\n) else (\nset M=b.gguf\n)\nllama-server.exe -m %M%\n",
    "`%M%` (line 4) is set under"
)]
#[case("if exist x set CUDA_VISIBLE_DEVICES=0\nvllm serve m\n", "(line 1) is set under a condition")]
#[case("set A=serve m\nif exist x set A=\nvllm %A%\n", "`%A%` (line 2) is set under a condition")]
#[case("for %%i in (1 2) do vllm serve m -tp %%i\n", "under a condition (`for`)")]
#[case("false || vllm serve m\n", "under a condition (`||`)")]
#[case("set /a N=X*2\nvllm serve m -tp %N%\n", "`%N%` (line 1) is an expression that this reader does not compute")]
#[case("set /p N=how many\nvllm serve m -tp %N%\n", "`%N%` (line 1) is what another command prints")]
#[case(
    "set N=2\ncall env.bat\nvllm serve m -tp %N%\n",
    "`%N%` (line 2) may be set by a file that is sourced or called"
)]
#[case(
    "set N=2\ncall :more\nvllm serve m -tp %N%\ngoto :eof\n:more\nset N=4\n",
    "may be set by a file that is sourced or called"
)]
#[case("set N=2\nif exist x goto run\nset N=4\n:run\nvllm serve m -tp %N%\n", "`%N%` is set under a condition")]
#[case("if exist x goto big\nexit /b\n:big\nvllm serve m\n", "under a condition (`goto`)")]
#[case("exit /b 0\nvllm serve m\n", "no command that starts an engine")]
#[case("goto :eof\nvllm serve m\n", "no command that starts an engine")]
#[case("other.bat\nvllm serve m\n", "no command that starts an engine")]
fn what_a_batch_file_leaves_open_is_refused(#[case] text: &str, #[case] expected: &str) {
    let error = manifest::read("a.bat", text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case("set HF_TOKEN=sesame\nvllm serve m --served-model-name %HF_TOKEN% -tp 3\n")]
#[case("set HF_TOKEN=sesame\nset N=%HF_TOKEN%\nvllm serve m --max-model-len=%N%\n")]
#[case("set KEY=sesame& set N=%KEY%\nvllm serve m --api-key %KEY% --port %KEY%\n")]
fn what_is_a_secret_is_hidden_in_a_batch_file(#[case] text: &str) {
    let found = &manifest::read("a.bat", text.as_bytes()).unwrap()[0];
    assert!(!found.words.iter().any(|word| word.contains("sesame")), "{:?}", found.words);
    assert!(found.words.iter().any(|word| word.ends_with("<hidden>")), "{:?}", found.words);
}

/// What a caret keeps of a line that is empty is its end, a word of its own.
#[rstest]
#[case("vllm serve m ^\r\n\r\n --seed 2\r\n", &["\n", "--seed", "2"])]
#[case("vllm serve m ^\n\n^\n --seed 2\n", &["\n", "--seed", "2"])]
#[case("vllm serve m ^\n\n\n --seed 2\n", &["\n"])]
#[case("vllm serve m ^\n\n", &["\n"])]
#[case("vllm serve m ^\n --seed 2\n", &["--seed", "2"])]
fn a_caret_keeps_the_end_of_an_empty_line(#[case] text: &str, #[case] expected: &[&str]) {
    assert_eq!(manifest::read("a.bat", text.as_bytes()).unwrap()[0].words[3..], *expected);
}

/// What a called script may set is still the environment of a program.
#[test]
fn the_environment_is_left_by_what_is_called() {
    let text = "set CUDA_VISIBLE_DEVICES=0\ncall env.bat\nvllm serve m\n";
    let found = manifest::read("a.bat", text.as_bytes()).unwrap();
    assert_eq!(found[0].to_string(), "CUDA_VISIBLE_DEVICES=0 vllm serve m");
}

#[test]
fn flags_below_a_command_that_has_ended_are_named() {
    let found = manifest::read("a.bat", b"vllm serve m ^ \n--max-model-len 2048\n").unwrap();
    assert_eq!(found[0].cut, ["--max-model-len"]);
}
