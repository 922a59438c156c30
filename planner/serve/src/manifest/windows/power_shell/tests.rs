use rstest::rstest;

use crate::manifest;

#[rstest]
#[case::whole(
    "# ours\n$env:CUDA_VISIBLE_DEVICES = \"0\"\n$model = 'D:\\m\\a.gguf'\n& \"D:\\llama\\llama-server.exe\" -m $Model `\n  --chat-template-kwargs '{\"a\": 1}' # the port\n",
    "CUDA_VISIBLE_DEVICES=0 \"D:\\\\llama\\\\llama-server.exe\" -m \"D:\\\\m\\\\a.gguf\" --chat-template-kwargs '{\"a\": 1}'",
    4
)]
#[case::a_list(
    "$model = 'm'\n$params = @(\"--max-model-len\", '8192', \"--max-num-seqs\", 8)\nvllm serve $Model @params --port 80\n",
    "vllm serve m --max-model-len 8192 --max-num-seqs 8 --port 80",
    3
)]
#[case::a_list_of_lines(
    "$params = @(\n  '--max-num-seqs'\n  '8'\n)\nvllm serve m $params\n",
    "vllm serve m --max-num-seqs 8",
    5
)]
#[case::linux("wsl vllm serve org/m --port 80\n", "vllm serve org/m --port 80", 1)]
fn a_script_of_power_shell_starts_what_it_says(#[case] text: &str, #[case] command: &str, #[case] line: usize) {
    let found = manifest::read("start.ps1", text.as_bytes()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].to_string(), found[0].place.clone()), (command.to_owned(), format!("start.ps1:{line}")));
}

/// What `vllm serve m` is handed by these lines.
#[rstest]
#[case::semicolon("vllm serve m 2048; echo done", "2048")]
#[case::semicolon_apart("vllm serve m 2048 ; echo done", "2048")]
#[case::behind_another("cd C:\\x; vllm serve m 1", "1")]
#[case::all_streams("vllm serve m 2048 *> log.txt", "2048")]
#[case::streams("vllm serve m 2048 2>&1 | Tee-Object -FilePath log.txt", "2048")]
#[case::no_blank("vllm serve m 2048>log.txt", "2048")]
#[case::errors("vllm serve m 2> $null -x", "-x")]
#[case::added_to_a_list("$a = @(\"serve\",\"m\")\n$a += \"--seed\",\"2048\"\nvllm @a", "--seed 2048")]
#[case::added_one("$a = @(\"serve\",\"m\")\n$a += \"1\"\nvllm $a", "1")]
#[case::added("$l = 2048\n$l += 2048\nvllm serve m $l", "4096")]
#[case::multiplied("$l = 2048\n$l *= 2\nvllm serve m $l", "4096")]
#[case::divided("$l = 8192; $l /= 2; $l -= 1; vllm serve m $l", "4095")]
#[case::counted("$l = 1\n$l++\nvllm serve m $l", "2")]
#[case::a_unit("$l = 2kb\nvllm serve m $l", "2048")]
#[case::of_sixteen("$l = 0x800\nvllm serve m $l", "2048")]
#[case::a_product("$l = 1024 * 2\nvllm serve m $l", "2048")]
#[case::order("$l = 2 + 3 * (4 - 1) % 5\nvllm serve m $l", "6")]
#[case::twice("$l = 2048; $l = 4096\nvllm serve m $l", "4096")]
#[case::a_type("[int]$l = '2048'\n$m = [string]$l + '0'\nvllm serve m $l $m", "2048 20480")]
#[case::joined("$l = \"20\"+\"48\"\nvllm serve m $l", "2048")]
#[case::a_number_of_a_text("$l = 2 + \"48\"\nvllm serve m $l", "50")]
#[case::a_text("$l = 2048\nvllm serve m \"--seed=$l\" '--x=$l' \"${l}0\" \"`$l\"", "--seed=2048 --x=$l 20480 $l")]
#[case::within_a_word("$l = 2048\nvllm serve m --seed=$l", "--seed=2048")]
#[case::an_expression("$l = 2\nvllm serve m ($l * 2) \"$($l + 1)\"", "4 3")]
#[case::as_written("vllm serve m 2kb 0x10 1.50", "2kb 0x10 1.50")]
#[case::reals("$u = 0.90\n$v = 1 / 4\nvllm serve m $u $v", "0.9 0.25")]
#[case::an_element("$a = 1, 2, 3\nvllm serve m $a[0] $a[-1]", "1 3")]
#[case::joined_list("$a = 1, 2\n$b = $a -join ','\nvllm serve m $b 3,4", "1,2 3,4")]
#[case::nested("$a = @('x') + @('y', 'z')\nvllm serve m @a", "x y z")]
#[case::lines("$j = @\"\n{\"a\": 1}\n\"@\nvllm serve m $j", "{\"a\": 1}")]
#[case::environment("$env:L = 1\n$env:L += '2'\nvllm serve m $env:L", "12")]
#[case::chained("$a = $b = 5\nvllm serve m $a $b", "5 5")]
#[case::scope("$script:l = 5\nvllm serve m $l", "5")]
#[case::a_comment("<# vllm serve n #>\nvllm serve m 1 # 2\n", "1")]
#[case::tried("try {\n  vllm serve m 1\n} finally {\n  echo x\n}\n", "1")]
#[case::forever("while ($true) { vllm serve m 1; Start-Sleep 5 }\n", "1")]
#[case::a_process("Start-Process -FilePath vllm -ArgumentList \"serve\",\"m\",\"1\" -Wait\n", "1")]
#[case::a_process_of_a_text("Start-Process vllm \"serve m --x `\"a b`\"\"\n", "--x a b")]
#[case::a_text_of_a_script("$c = 'vllm serve m 1'\nInvoke-Expression $c\n", "1")]
#[case::the_folder("& \"$PSScriptRoot\\vllm.exe\" serve m 1", "1")]
#[case::shown("$l = 1\nWrite-Host \"len $l = 2\"\nvllm serve m $l", "1")]
fn a_command_is_read_as_power_shell_reads_it(#[case] text: &str, #[case] expected: &str) {
    let found = manifest::read("a.ps1", text.as_bytes()).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0].words[2], found[0].words[3..].join(" ").as_str()), (&"m".to_owned(), expected));
}

/// The variable of `vllm serve m -tp $n` is not known behind these lines, and the one that made it so is named.
#[rstest]
#[case("$n = [math]::Pow(2, 1)", "`$n` (line 2) is an expression that this reader does not compute")]
#[case("$n = '2'.Trim()", "`$n` (line 2) is an expression")]
#[case("$n = 1 -shl 1", "`$n` (line 2) is an expression")]
#[case("$n = @{ a = 2 }", "`$n` (line 2) is an expression")]
#[case("$m, $n = 1, 2", "`$n` (line 2) is an expression")]
#[case("$n, $m = 1, 2", "`$n` (line 2) is an expression")]
#[case("$n.Add('x')", "`$n` (line 2) is an expression")]
#[case("[void]$n.Add('x')", "`$n` (line 2) is an expression")]
#[case("$n[0] = 4", "`$n` (line 2) is an expression")]
#[case("Write-Host ($n = 4)", "`$n` (line 2) is an expression")]
#[case("f ([ref]$n)", "`$n` (line 2) is an expression")]
#[case("Set-Variable -Name n -Value 4", "`$n` (line 2) is an expression")]
#[case("$m = $n++", "`$n` (line 2) is an expression")]
#[case("$n ??= 4", "`$n` (line 2) is an expression")]
#[case("$n = Get-Item x y", "`$n` (line 2) is what another command prints")]
#[case("$n = 4, 5 | Measure-Object", "`$n` (line 2) is an expression")]
#[case("if (Test-Path x) { $n = 4 }", "`$n` (line 2) is set under a condition")]
#[case("if (Test-Path x) { $n += 4 }", "`$n` (line 2) is set under a condition")]
#[case("if (($n = 4) -gt 2) { echo }", "`$n` (line 2) is an expression")]
#[case("$n = if ($true) { 4 } else { 5 }", "`$n` (line 2) is set under a condition")]
#[case("foreach ($n in 1..3) { echo }", "`$n` (line 2) is another value in each round of a loop")]
#[case("1..3 | ForEach-Object { $n = 4 }", "`$n` (line 2) is set under a condition")]
#[case("param([int]$n = 4)", "`$n` (line 2) is an argument of the script")]
#[case(". .\\env.ps1", "`$n` (line 2) may be set by a file that is sourced")]
fn what_power_shell_computes_is_refused_by_its_own_name(#[case] line: &str, #[case] expected: &str) {
    let text = format!("$n = 2\n{line}\nvllm serve m -tp $n\n");
    let error = manifest::read("a.ps1", text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case("llama-server -m $model\n", "`$model` is not set in the script")]
#[case("$a = @('serve', 'm')\nif ($true) { $a += '--seed', '1' }\nvllm @a\n", "`$a` (line 2) is set under a condition")]
#[case("$a = @('serve', 'm')\n$a += Get-Content x.txt\nvllm @a\n", "`$a` (line 2) is what another command prints")]
#[case("for ($i = 0; $i -lt 2; $i++) { $a += 'x' }\nvllm @a\n", "`$a` (line 1) is set under a condition")]
#[case(
    "$env:CUDA_VISIBLE_DEVICES = Get-Content x\nvllm serve m\n",
    "`$env:CUDA_VISIBLE_DEVICES` (line 1) is what another"
)]
#[case(
    "[Environment]::SetEnvironmentVariable('CUDA_VISIBLE_DEVICES', (f))\nvllm serve m\n",
    "(line 1) is an expression"
)]
#[case(
    "if ($x) { [Environment]::SetEnvironmentVariable('VLLM_USE_V1', '0') }\nvllm serve m\n",
    "(line 1) is set under a condition"
)]
#[case("vllm serve m -tp $args[0]\n", "`$args` is an argument of the script")]
#[case("if (Test-Path x) {\n  vllm serve m\n}\n", "under a condition (`if`)")]
#[case("function f {\n  vllm serve m\n}\nf\n", "under a condition (`function`)")]
#[case("Start-Job { vllm serve m }\n", "under a condition (`{`)")]
#[case("vllm serve m --x {\"a\": 1}\n", "is an expression that this reader does not compute")]
#[case("vllm serve m --x 1, 2\n", "is an expression that this reader does not compute")]
#[case("exit 0\nvllm serve m\n", "no command that starts an engine")]
#[case("echo \"vllm serve m\"\n", "no command that starts an engine")]
fn what_a_script_of_power_shell_leaves_open_is_refused(#[case] text: &str, #[case] expected: &str) {
    let error = manifest::read("a.ps1", text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case("[Environment]::SetEnvironmentVariable(\"CUDA_VISIBLE_DEVICES\",\"0\")", "CUDA_VISIBLE_DEVICES=0 ")]
#[case("[void][system.environment]::setenvironmentvariable( 'A', $l, 'Process' ); $l = 3", "A=2 ")]
#[case("[Environment]::SetEnvironmentVariable('A', '1', [System.EnvironmentVariableTarget]::Process)", "A=1 ")]
#[case("[Environment]::SetEnvironmentVariable('A', '1', [EnvironmentVariableTarget]::Machine)", "")]
#[case("[Environment]::SetEnvironmentVariable('A', '1', 'User')", "")]
#[case("$env:A = 1\n[Environment]::SetEnvironmentVariable('A', $null)", "")]
fn a_variable_that_a_method_sets_is_set(#[case] line: &str, #[case] expected: &str) {
    let text = format!("$l = 2\n{line}\nvllm serve m\n");
    let found = &manifest::read("a.ps1", text.as_bytes()).unwrap()[0];
    assert_eq!(found.to_string(), format!("{expected}vllm serve m"));
}

#[rstest]
#[case("$env:HF_TOKEN = 'sesame'\nvllm serve m --served-model-name $env:HF_TOKEN -tp 3\n")]
#[case("$api_key = 'sesame'\n$n = $api_key\nvllm serve m --max-model-len=$n\n")]
#[case("$k = 'sesame'\nvllm serve m --api-key $k --port $k\n")]
fn what_is_a_secret_is_hidden_in_a_script_of_power_shell(#[case] text: &str) {
    let found = &manifest::read("a.ps1", text.as_bytes()).unwrap()[0];
    assert!(!found.words.iter().any(|word| word.contains("sesame")), "{:?}", found.words);
    assert!(found.words.iter().any(|word| word.ends_with("<hidden>")), "{:?}", found.words);
}
