package selftest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// runOnly runs the checks with a name.
func runOnly(t *testing.T, open func() (tensor.Backend, error), name string) []Result {
	t.Helper()
	results, err := Run(context.Background(), Options{Open: open, Only: func(n string) bool { return n == name }})
	if err != nil && !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	if len(results) != 1 {
		t.Fatalf("%d checks are called %q", len(results), name)
	}
	if results[0].OK != (err == nil) {
		t.Errorf("%s: ok is %v, and the error %v", name, results[0].OK, err)
	}
	return results
}

func TestEachFaultIsFoundByItsCheck(t *testing.T) {
	for op, c := range map[string]struct{ check, says string }{
		"Read":              {"float32: numbers and ids in and out", "Read"},
		"ReadIDs":           {"float32: numbers and ids in and out", "ids"},
		"Add":               {"float32: Add, Multiply, SiLU, SwiGLU", "Add"},
		"no number":         {"float32: Add, Multiply, SiLU, SwiGLU", "Add: value 0 is NaN"},
		"Multiply":          {"float32: Add, Multiply, SiLU, SwiGLU", "Multiply"},
		"SiLU":              {"float32: Add, Multiply, SiLU, SwiGLU", "SiLU"},
		"SwiGLU":            {"float16: Add, Multiply, SiLU, SwiGLU", "SwiGLU"},
		"RMSNorm":           {"bfloat16: RMSNorm", "runs of 67"},
		"Rope":              {"float32: Rope", "whole heads"},
		"Rope factors":      {"float32: Rope", "factors"},
		"Rope magnitude":    {"float32: Rope", "a part of each head"},
		"Rows":              {"float32: Rows, Mean, Unit", "Rows"},
		"Mean":              {"float32: Rows, Mean, Unit", "Mean"},
		"mask":              {"float32: Rows, Mean, Unit", "Mean"},
		"Unit":              {"float16: Rows, Mean, Unit", "Unit"},
		"Argmax":            {"float32: Argmax", "chose"},
		"AppendAttend":      {"float32: attention, heads of 64", "37 tokens after 0"},
		"scale":             {"float32: attention, heads of 128", "tokens after"},
		"window":            {"float32: attention, window and sinks", "tokens after"},
		"sinks":             {"float32: attention, window and sinks", "tokens after"},
		"Linear":            {"float32: dense products", "1 tokens by float32"},
		"Linear of a chunk": {"float16: affine products, 4 bits", "40 tokens by affine 4-bit"},
		"Embed":             {"float32: symmetric products, 4 and 8 bits", "a row of symmetric"},
		"LoadMatrix":        {"bfloat16: affine products, 3 bits", "load affine 3-bit"},
		"Release":           {"float32: RMSNorm", "gauges report"},
		"Close":             {"threads", "still alive"},
		"SetLimits":         {"memory: limit", "want ErrMemory"},
		"panic":             {"speed: 1 token by 4-bit weights", "panic: unexpected"},
	} {
		got := runOnly(t, opening(op), c.check)[0]
		if got.OK || !strings.Contains(got.Error, c.says) {
			t.Errorf("%s is wrong: %s says %+v, want an error with %q", op, c.check, got, c.says)
		}
		if right := runOnly(t, opening("nothing"), c.check)[0]; !right.OK && op != "panic" {
			t.Errorf("nothing is wrong: %s says %+v", c.check, right)
		}
	}
}

func TestAModelThatIsDecodedWrongIsFound(t *testing.T) {
	const name = "model: qwen3, float32, 4 bits"
	if got := runOnly(t, opening("SwiGLU"), name)[0]; got.OK || !strings.Contains(got.Error, "logits after 150 tokens") {
		t.Errorf("a wrong feed-forward: %+v", got)
	}
	if got := runOnly(t, opening("LoadMatrix"), name)[0]; got.OK {
		t.Errorf("matrices that do not load: %+v", got)
	}
	before, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got := runOnly(t, opening("nothing"), name)[0]; !got.OK || got.Value != 0 {
		t.Errorf("a right one: %+v", got)
	}
	after, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if n := modelsIn(after) - modelsIn(before); n > 0 {
		t.Errorf("%d models were left behind", n)
	}
}

func modelsIn(entries []os.DirEntry) int {
	n := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "metalfleet-selftest-") {
			n++
		}
	}
	return n
}

func TestTheFaultsOfAFrameworkAreFound(t *testing.T) {
	for op, c := range map[string]struct{ check, says string }{
		"nothing":  {"threads", ""},
		"Provoke":  {"exceptions", "mismatched shapes"},
		"too much": {"exceptions", "a matrix of 1 TiB"},
		"threads":  {"threads", "want ErrThread"},
		"kernel":   {"bfloat16: attention of prefill chunks with decodes", "computed no segment"},
		"no fault": {"bfloat16: attention of prefill chunks with decodes", ""},
	} {
		got := runOnly(t, openingCalled(op), c.check)[0]
		if got.OK != (c.says == "") || !strings.Contains(got.Error, c.says) {
			t.Errorf("%s: %+v, want an error with %q", op, got, c.says)
		}
	}
	if got := runOnly(t, openingCalled("nothing"), "exceptions")[0]; !got.OK || got.Value != 2 {
		t.Errorf("both exceptions came back: %+v", got)
	}
	if _, err := Run(context.Background(), Options{Open: openingCalled("About")}); err == nil || errors.Is(err, ErrFailed) {
		t.Errorf("a framework that says nothing: error %v", err)
	}
}

func TestARunGoesOnAfterAFaultAndSaysHowManyThereWere(t *testing.T) {
	var began, done []string
	results, err := Run(context.Background(), Options{
		Open:  opening("panic"),
		Began: func(name string) { began = append(began, name) },
		Done:  func(r Result) { done = append(done, r.Name) },
		Only: func(name string) bool {
			return strings.HasSuffix(name, "Argmax") || strings.HasPrefix(name, "memory: g")
		},
	})
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "4 of 4") || len(results) != 4 {
		t.Errorf("error %v and %d results, want 4 of 4", err, len(results))
	}
	if strings.Join(began, ",") != strings.Join(done, ",") || len(done) != 4 {
		t.Errorf("began %q, done %q", began, done)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{Open: opening("nothing")}); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancel: error %v", err)
	}
	broken := errors.New("no such back end")
	if _, err := Run(context.Background(), Options{Open: func() (tensor.Backend, error) { return nil, broken }}); !errors.Is(err, broken) {
		t.Errorf("no back end: error %v", err)
	}
}

// hoard keeps memory that is not counted.
type hoard struct {
	*wrong
	kept *[][]byte
}

func (b hoard) Attach() error {
	kept := make([]byte, 64<<20)
	for i := 0; i < len(kept); i += 4096 {
		kept[i] = 1
	}
	*b.kept = append(*b.kept, kept)
	return b.wrong.Attach()
}

func TestMemoryThatDoesNotComeBackIsFound(t *testing.T) {
	const name = "memory: footprint of the process"
	if got := runOnly(t, opening("nothing"), name)[0]; !got.OK || !strings.Contains(got.Note, "134.2 MB loaded") {
		t.Errorf("nothing is wrong: %+v", got)
	}
	var kept [][]byte
	got := runOnly(t, func() (tensor.Backend, error) {
		b, err := opening("nothing")()
		return hoard{b.(*wrong), &kept}, err
	}, name)[0]
	if got.OK || !strings.Contains(got.Error, "of what was loaded, want at most 0.25") {
		t.Errorf("64 MiB too many: %+v", got)
	}
	if len(kept) == 0 {
		t.Error("nothing was kept")
	}
}

func TestTheMachineIsNamed(t *testing.T) {
	facts := Machine()
	for _, name := range []string{"system", "architecture", "cpus", "go"} {
		if facts[name] == "" {
			t.Errorf("%s is not known: %v", name, facts)
		}
	}
	if n, err := ProcessBytes(); err != nil || n < 1<<20 {
		t.Errorf("this process has %d bytes (%v)", n, err)
	}
}
