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
		"Read":              {check: "float32: numbers and ids in and out", says: "Read"},
		"ReadIDs":           {check: "float32: numbers and ids in and out", says: "ids"},
		"Add":               {check: "float32: Add, Multiply, SiLU, SwiGLU", says: "Add"},
		"no number":         {check: "float32: Add, Multiply, SiLU, SwiGLU", says: "Add: value 0 is NaN"},
		"Multiply":          {check: "float32: Add, Multiply, SiLU, SwiGLU", says: "Multiply"},
		"SiLU":              {check: "float32: Add, Multiply, SiLU, SwiGLU", says: "SiLU"},
		"SwiGLU":            {check: "float16: Add, Multiply, SiLU, SwiGLU", says: "SwiGLU"},
		"RMSNorm":           {check: "bfloat16: RMSNorm", says: "runs of 67"},
		"Rope":              {check: "float32: Rope", says: "whole heads"},
		"Rope factors":      {check: "float32: Rope", says: "factors"},
		"Rope magnitude":    {check: "float32: Rope", says: "a part of each head"},
		"Rows":              {check: "float32: Rows, Mean, Unit", says: "Rows"},
		"Mean":              {check: "float32: Rows, Mean, Unit", says: "Mean"},
		"mask":              {check: "float32: Rows, Mean, Unit", says: "Mean"},
		"Unit":              {check: "float16: Rows, Mean, Unit", says: "Unit"},
		"Argmax":            {check: "float32: Argmax", says: "chose"},
		"AppendAttend":      {check: "float32: attention, heads of 64", says: "37 tokens after 0"},
		"scale":             {check: "float32: attention, heads of 128", says: "tokens after"},
		"window":            {check: "float32: attention, window and sinks", says: "tokens after"},
		"sinks":             {check: "float32: attention, window and sinks", says: "tokens after"},
		"Linear":            {check: "float32: dense products", says: "1 tokens by float32"},
		"Linear of a chunk": {check: "float16: affine products, 4 bits", says: "40 tokens by affine 4-bit"},
		"Embed":             {check: "float32: symmetric products, 4 and 8 bits", says: "a row of symmetric"},
		"LoadMatrix":        {check: "bfloat16: affine products, 3 bits", says: "load affine 3-bit"},
		"Release":           {check: "float32: RMSNorm", says: "gauges report"},
		"Close":             {check: "threads", says: "still alive"},
		"SetLimits":         {check: "memory: limit", says: "want ErrMemory"},
		"panic":             {check: "speed: 1 token by 4-bit weights", says: "panic: unexpected"},
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
		"nothing":  {check: "threads", says: ""},
		"Provoke":  {check: "exceptions", says: "mismatched shapes"},
		"too much": {check: "exceptions", says: "a matrix of 1 TiB"},
		"threads":  {check: "threads", says: "want ErrThread"},
		"kernel":   {check: "bfloat16: attention of prefill chunks with decodes", says: "computed no segment"},
		"no fault": {check: "bfloat16: attention of prefill chunks with decodes", says: ""},
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
		return hoard{wrong: b.(*wrong), kept: &kept}, err
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
