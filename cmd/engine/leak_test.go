package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/wire"
)

// resident bytes of a process, as the kernel counts them.
func resident(t *testing.T, pid int) (kb int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	t.Fatalf("no VmRSS in %s", b)
	return 0
}

// generate runs one request of a process and returns how it ended.
func (p *process) generate(ctx context.Context, tokens int64) (*wire.Finished, error) {
	s, err := p.client.Generate(ctx, &wire.GenerateRequest{
		Input: &wire.GenerateRequest_Prompt{Prompt: "Hello"}, MaxTokens: tokens, Sampling: &wire.Sampling{Temperature: new(float32)},
	})
	for err == nil {
		var ev *wire.GenerateEvent
		if ev, err = s.Recv(); err == nil && ev.GetFinished() != nil {
			return ev.GetFinished(), nil
		}
	}
	return nil, err
}

func TestOnlyATestLeaks(t *testing.T) {
	logs := &bytes.Buffer{}
	log := slog.New(slog.NewTextHandler(logs, nil))
	b := ref.New(ref.Options{Threads: 1})
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if leaking(b, 0, log) != tensor.Backend(b) || logs.Len() > 0 {
		t.Errorf("an engine without the flag leaks: %s", logs)
	}
	leak := leaking(b, 1<<20, log)
	for range 3 {
		leak.NewScope(t.Context()).Close()
	}
	leaked := 0
	for _, l := range leak.(*leaky).leaked {
		leaked += len(l)
	}
	if leaked != 3<<20 {
		t.Errorf("%d bytes leaked in 3 steps of a MiB", leaked)
	}
	if strings.Count(logs.String(), "this engine leaks memory on purpose, for a test") != 1 {
		t.Errorf("logged: %s", logs)
	}
}

// Memory that only the kernel sees counts, and the engine refuses prompts above
// its ceiling.
func TestLeakOutsideTheBackEndIsStoppedAtTheProcessLimit(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc, which only Linux has")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p := serveProcess(t, "--test-leak", fmt.Sprint(8<<20))
	p.awaitReady(t, ctx)
	before := resident(t, p.cmd.Process.Pid)
	f, err := p.generate(ctx, 20)
	if err != nil || f.GetError() != nil {
		t.Fatalf("under the limit: %v, %v", f, err)
	}
	// Every step but the last leaks before its token is sent.
	steps := f.GetUsage().GetGeneratedTokens() - 1
	if steps < 8 {
		t.Fatalf("the answer has only %d tokens", steps+1)
	}
	after := resident(t, p.cmd.Process.Pid)
	if after-before < steps*8<<20 {
		t.Errorf("the process grew by %d bytes in %d steps that leak 8 MiB each", after-before, steps)
	}
	if _, err := p.client.SetLimits(ctx, &wire.Limits{MemoryBytes: before + 40<<20, Sequence: 1, FootprintBytes: after}); err != nil {
		t.Fatal(err)
	}
	_, err = p.generate(ctx, 20)
	if r := wire.RefusalOf(err); r.GetCode() != wire.Code_CODE_MEMORY || r.GetUsedBytes() < after*9/10 || r.GetLimitBytes() != before+40<<20 {
		t.Errorf("above the limit: %v", err)
	}
	if _, err := p.client.Shutdown(ctx, &wire.ShutdownRequest{}); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(p.log.String(), "leaks memory on purpose") {
		t.Errorf("the log does not mention the leak: %s", p.log)
	}
}

func TestNoHelpListsTheLeakOfTests(t *testing.T) {
	var stderr bytes.Buffer
	run([]string{"serve", "--help"}, &env{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &stderr})
	if help := stderr.String(); !strings.Contains(help, "-socket") || !strings.Contains(help, "-config") || strings.Contains(help, "leak") {
		t.Errorf("help is %q", help)
	}
}
