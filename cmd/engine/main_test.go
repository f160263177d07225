package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestMain lets the test binary stand in for the program.
func TestMain(m *testing.M) {
	if os.Getenv("ENGINE_UNDER_TEST") != "" {
		main()
	}
	os.Exit(m.Run())
}

// engine runs the program with arguments.
func runProgram(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, &env{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs})
	return out.String(), errs.String(), code
}

func tinyModel(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	return path
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodesSayWhatWentWrong(t *testing.T) {
	m := tinyModel(t)
	broken := file(t, "GGUF and then nothing of use")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"version":                {args: []string{"--version"}, code: exitOK},
		"nothing":                {code: exitUsage, says: "usage"},
		"unknown command":        {args: []string{"fly"}, code: exitUsage, says: "unknown command"},
		"unknown flag":           {args: []string{"inspect", "--fly"}, code: exitUsage, says: "fly"},
		"no model":               {args: []string{"inspect"}, code: exitUsage, says: "--model"},
		"left over":              {args: []string{"inspect", "--model", m, "more"}, code: exitUsage, says: "more"},
		"model not found":        {args: []string{"inspect", "--model", m + ".none"}, code: exitModel, says: "no such file"},
		"broken model":           {args: []string{"generate", "--model", broken, "--prompt", "a"}, code: exitModel},
		"inspect":                {args: []string{"inspect", "--model", m}, code: exitOK},
		"two inputs":             {args: []string{"generate", "--model", m, "--prompt", "a", "--tokens-file", "b"}, code: exitUsage, says: "exactly one"},
		"back end not built":     {args: []string{"generate", "--model", m, "--prompt", "a", "--backend", "abacus"}, code: exitUsage, says: "available: "},
		"bad temperature":        {args: []string{"generate", "--model", m, "--prompt", "a", "--temperature", "-1"}, code: exitFailure, says: "temperature"},
		"messages are no array":  {args: []string{"template", "--model", m, "--messages", file(t, "{}")}, code: exitUsage, says: "array of messages"},
		"a message has no role":  {args: []string{"template", "--model", m, "--messages", file(t, "[{}]")}, code: exitUsage, says: "no role"},
		"no messages":            {args: []string{"template", "--model", m}, code: exitUsage, says: "--messages"},
		"tokens are no array":    {args: []string{"logits", "--model", m, "--tokens-file", file(t, "{}")}, code: exitUsage, says: "JSON array"},
		"serve without socket":   {args: []string{"serve"}, code: exitUsage, says: "--socket"},
		"serve with bad config":  {args: []string{"serve", "--socket", "/nowhere/s", "--config", file(t, `{"unknown":1}`)}, code: exitUsage, says: "unknown"},
		"a cache below nothing":  {args: []string{"serve", "--socket", "/nowhere/s", "--config", "c", "--cache-memory", "-1"}, code: exitUsage, says: "--cache-memory is -1"},
		"unknown activations":    {args: []string{"generate", "--model", m, "--prompt", "a", "--backend", "ref", "--activations", "9bit"}, code: exitUsage, says: "8bit"},
		"configured activations": {args: []string{"serve", "--socket", "/nowhere/s", "--config", file(t, `{"replicaUID":"r","epoch":1,"modelPath":"m","backend":"ref","activations":"9bit","contextTokens":1,"sequences":1,"cacheTokens":1,"limitBytes":1}`)}, code: exitUsage, says: "8bit"},
		"selftest is exact":      {args: []string{"selftest", "--activations", "8bit"}, code: exitUsage, says: "activations"},
		"streams are no numbers": {args: []string{"bench", "--model", m, "--streams", "1,x"}, code: exitUsage, says: "streams"},
	} {
		_, stderr, code := runProgram(t, "", c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit code %d, %q; want %d saying %q", name, code, stderr, c.code, c.says)
		}
	}
}

// runJSON runs the program, requires an exit code, and decodes what it prints.
func runJSON(t *testing.T, into any, want int, stdin string, args ...string) (stderr string) {
	t.Helper()
	out, stderr, code := runProgram(t, stdin, args...)
	if err := json.Unmarshal([]byte(out), into); code != want || err != nil {
		t.Fatalf("%s printed %q (%v), then exit code %d, want %d: %q", args[0], out, err, code, want, stderr)
	}
	return stderr
}

// The logits after generated tokens are those that they were generated from.
func TestGenerateAndLogitsAgree(t *testing.T) {
	m := tinyModel(t)
	var gen generation
	runJSON(t, &gen, exitOK, "", "generate", "--model", m, "--prompt", "The capital", "--max-tokens", "7", "--json")
	if len(gen.PromptTokens) == 0 || len(gen.Tokens) == 0 {
		t.Fatalf("generate printed %+v", gen)
	}
	last := len(gen.Tokens) - 1
	ids, err := json.Marshal(append(append([]int32{}, gen.PromptTokens...), gen.Tokens[:last]...))
	if err != nil {
		t.Fatal(err)
	}
	logits := []string{"logits", "--model", m, "--tokens-file", file(t, string(ids)), "--top", "3"}
	var fine, coarse struct{ Top []scored }
	runJSON(t, &fine, exitOK, "", logits...)
	if len(fine.Top) != 3 || fine.Top[0].Logit < fine.Top[1].Logit {
		t.Fatalf("logits printed %v", fine.Top)
	}
	if fine.Top[0].ID != gen.Tokens[last] {
		t.Errorf("the largest logit is %d, greedy took %d", fine.Top[0].ID, gen.Tokens[last])
	}
	runJSON(t, &coarse, exitOK, "", append(logits, "--backend", "ref", "--activations", "8bit")...)
	if len(coarse.Top) != 3 || slices.Equal(coarse.Top, fine.Top) {
		t.Errorf("with activations of 8 bits the logits are %v; those of float32 are %v", coarse.Top, fine.Top)
	}
}

func TestTextsAreTokenizedAndTemplated(t *testing.T) {
	m := tinyModel(t)
	text := "The capital of France 🙂\n"
	out, _, _ := runProgram(t, text, "tokenize", "--model", m)
	if back, _, code := runProgram(t, out, "tokenize", "--model", m, "--decode"); code != exitOK || back != text {
		t.Errorf("tokenize and back gave %q", back)
	}
	if out, _, code := runProgram(t, "", "tokenize", "--model", m); code != exitOK || out != "[]\n" {
		t.Errorf("tokenize printed %q for an empty text", out)
	}
	conversation := file(t, `[{"role":"user","content":"Hi <there>"}]`)
	out, stderr, code := runProgram(t, "", "template", "--model", m, "--messages", conversation)
	if code != exitOK || !strings.Contains(out, "Hi <there>") {
		t.Errorf("template printed %q, %q", out, stderr)
	}
}

func TestEmbedInspectAndBenchPrintJSON(t *testing.T) {
	m := tinyModel(t)
	var vector embedding
	runJSON(t, &vector, exitOK, "", "embed", "--model", m, "--input", "Hello there")
	length := float32(0)
	for _, v := range vector.Embedding {
		length += v * v
	}
	if length < 0.999 || length > 1.001 {
		t.Errorf("embed printed a vector of length %v squared, want 1", length)
	}
	var facts inspection
	runJSON(t, &facts, exitOK, "", "inspect", "--model", m, "--json")
	if facts.Architecture != "llama" || facts.BytesByPart["embedding"] == 0 {
		t.Errorf("inspect printed %+v", facts)
	}
	var bench []measured
	runJSON(t, &bench, exitOK, "", "bench", "--model", m, "--prompt-tokens", "20", "--tokens", "3", "--streams", "1,2", "--json")
	if len(bench) != 2 || bench[1].DecodeTokensPerSec <= 0 {
		t.Errorf("bench printed %+v", bench)
	}
	var line measured
	wantProfile(t, m)
	stderr := runJSON(t, &line, exitUsage, "2 20 3\n0 20 3\n", "bench", "--model", m, "--lines")
	if line.Streams != 2 || line.PromptTokens != 20 || !strings.Contains(stderr, `"0 20 3"`) {
		t.Errorf("bench --lines printed %+v, %q", line, stderr)
	}
}

// What an inspection says of models that are not like most.
func TestInspectNamesExpertsAndWindows(t *testing.T) {
	mixture, windows := tinymodel.Default(), tinymodel.Default()
	mixture.Family, mixture.Experts = tinymodel.Qwen3MoE, tinymodel.Experts{Count: 6, PerToken: 2, FeedForward: 64}
	windows.Family, windows.Window, windows.Pattern, windows.Layers = tinymodel.Gemma3, 32, 3, 3
	for want, c := range map[string]tinymodel.Config{"6, of which each token uses 2": mixture, "32 tokens in 2 layers of 3": windows} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := tinymodel.Write(path, c); err != nil {
			t.Fatal(err)
		}
		if out, stderr, code := runProgram(t, "", "inspect", "--model", path); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("inspect printed %q, %q, want %q", out, stderr, want)
		}
	}
}

// TestInspectNamesRecurrentLayers with what they keep: three of four, 3 rows of
// 96 and 4 matrices of 8 by 16 each.
func TestInspectNamesRecurrentLayers(t *testing.T) {
	c := tinymodel.Default()
	c.Family, c.Layers = tinymodel.Qwen35, 4
	c.Hybrid = tinymodel.Hybrid{Interval: 4, KeyHeads: 2, KeySize: 16, ValueHeads: 4, ValueSize: 8, Taps: 4, Rotary: 0.5}
	path := filepath.Join(t.TempDir(), "hybrid")
	if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}); err != nil {
		t.Fatal(err)
	}
	const want = "3 layers of 4, with a state of 9600 bytes per sequence"
	if out, stderr, code := runProgram(t, "", "inspect", "--model", path); code != exitOK || !strings.Contains(out, want) {
		t.Errorf("inspect printed %q, %q, want %q", out, stderr, want)
	}
}

func TestInspectSaysWhatIsNotLoaded(t *testing.T) {
	c := tinymodel.Default()
	c.Family = tinymodel.Mistral
	path := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32), Sees: true}); err != nil {
		t.Fatal(err)
	}
	const eyes = 2 * 8 * 32 * 4
	if out, stderr, code := runProgram(t, "", "inspect", "--model", path); code != exitOK || !strings.Contains(out, fmt.Sprintf("%d bytes: the vision tower", eyes)) {
		t.Errorf("inspect printed %q, %q, want that %d bytes are not loaded", out, stderr, eyes)
	}
}

// process is a served engine in a process of its own.
type process struct {
	cmd    *exec.Cmd
	client wire.EngineClient
	socket string
	log    *bytes.Buffer
}

func serveProcess(t *testing.T, more ...string) *process {
	t.Helper()
	return serveConfig(t, wire.Config{ReplicaUID: "uid", Epoch: 1, ModelPath: tinyModel(t), ContextTokens: 256, Sequences: 2, CacheTokens: 512, LimitBytes: 1 << 30}, more...)
}

func serveConfig(t *testing.T, config wire.Config, more ...string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{socket: filepath.Join(dir, "s"), log: new(bytes.Buffer)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(self, append([]string{"serve", "--socket", p.socket, "--config", file(t, string(cfg))}, more...)...)
	p.cmd.Env = append(os.Environ(), "ENGINE_UNDER_TEST=1")
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	conn, err := wire.Dial(p.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	p.client = wire.NewEngineClient(conn)
	return p
}

func (p *process) awaitReady(t *testing.T, ctx context.Context) {
	t.Helper()
	for {
		w, err := p.client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: 20})
		for err == nil {
			var st *wire.Status
			if st, err = w.Recv(); err == nil && st.GetState() == wire.State_STATE_READY {
				return
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("the engine is not ready: %v\n%s", err, p.log)
		}
	}
}

func TestServeOutlivesTheTerminalAndObeysItsAgent(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	p := serveProcess(t)
	p.awaitReady(t, ctx)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	if h, err := p.client.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{1}}); err != nil || h.GetPid() != int64(p.cmd.Process.Pid) {
		t.Errorf("after Ctrl-C: %v, %v", h, err)
	}
	if _, err := p.client.Shutdown(ctx, &wire.ShutdownRequest{DrainMilliseconds: 100}); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("after Shutdown the process ended with %v\n%s", err, p.log)
	}

	p = serveProcess(t)
	p.awaitReady(t, ctx)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM the process ended with %v\n%s", err, p.log)
	}
	if c, err := net.Dial("unix", p.socket); err == nil {
		c.Close()
		t.Error("something still listens on the socket")
	}
}

// TestServeEndsIfItsAgentGaveItUp: an agent that was killed had started it, and the next one looked
// for it before it listened.
func TestServeEndsIfItsAgentGaveItUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	config := wire.Config{ReplicaUID: "uid", Epoch: 1, ModelPath: tinyModel(t), ContextTokens: 256, Sequences: 2, CacheTokens: 512, LimitBytes: 1 << 30, Sandbox: wire.SandboxOff}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "config") // it is gone before all of it was read
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := serveConfig(t, config, "--config", pipe)
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = os.Remove(pipe)
	_, failed := w.Write(text)
	if err := errors.Join(err, failed, w.Close()); err != nil {
		t.Fatal(err)
	}
	go func() {
		if _, err := p.client.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{1}}, grpc.WaitForReady(true)); err == nil {
			_ = p.cmd.Process.Kill() // it serves
		}
	}()
	if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() <= 0 || !strings.Contains(p.log.String(), "given this engine up") {
		t.Errorf("ended with %v\n%s", err, p.log)
	}
}

// TestInspectSaysWhatIsConverted in words and as JSON, measured.
func TestInspectSaysWhatIsConverted(t *testing.T) {
	c := tinymodel.Default()
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize, c.Type, c.Finer = 1, 256, 256, 8, 2, 32, weights.Q4_K, weights.Q6_K
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	out, stderr, code := runProgram(t, "", "inspect", "--model", path)
	if code != exitOK || !strings.Contains(out, "loaded as affine 8-bit group 32 float32: ") || !strings.Contains(out, "error at most ") {
		t.Errorf("code %d, %q, %q", code, out, stderr)
	}
	var said inspection
	out, _, _ = runProgram(t, "", "inspect", "--model", path, "--json")
	if err := json.Unmarshal([]byte(out), &said); err != nil || len(said.Converted) != 1 {
		t.Fatalf("%q (%v)", out, err)
	}
	if c := said.Converted[0]; c.Type != "Q6_K" || c.Tensors != 3 || !(c.Worst > 0) || c.Worst > c.Largest/50 || c.HeldBytes <= c.FileBytes {
		t.Errorf("it says %+v", c)
	}
}

// wantProfile wants the operations of a chunk and of a step, as JSON and as a
// table.
func wantProfile(t *testing.T, model string) {
	t.Helper()
	args := []string{"bench", "--profile", "--model", model, "--prompt-tokens", "20", "--tokens", "3", "--streams", "2"}
	out, stderr, code := runProgram(t, "", append(args, "--json")...)
	var phases []phase
	if err := json.Unmarshal([]byte(out), &phases); code != exitOK || err != nil || len(phases) != 2 {
		t.Fatalf("bench --profile printed %q (%v), %q", out, err, stderr)
	}
	for i, want := range []phase{{Phase: "prefill", Rows: 20}, {Phase: "decode", Rows: 2, Context: 20}} {
		p, share := phases[i], 0.0
		calls := map[string]int64{}
		for _, o := range p.Operations {
			calls[o.Name] = o.Calls
			share += o.Share
		}
		if p.Phase != want.Phase || p.Rows != want.Rows || p.Context != want.Context || p.Milliseconds <= 0 || p.Measured <= 0 || share < 0.999 || share > 1.001 {
			t.Errorf("%+v", p)
		}
		if calls["AppendAttend"] != 2 || calls["Embed"] != 1 || calls["Linear"] == 0 || calls["Argmax"] != int64(i) {
			t.Errorf("%s has the calls %v", p.Phase, calls)
		}
	}
	out, stderr, code = runProgram(t, "", args...)
	if code != exitOK || !strings.Contains(out, "decode on ") || !strings.Contains(out, "AppendAttend") || !strings.Contains(out, "GB/s") {
		t.Errorf("bench --profile printed %q, %q", out, stderr)
	}
}
