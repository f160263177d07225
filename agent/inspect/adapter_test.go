package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

const (
	adapterConfig  = "adapter_config.json"
	adapterWeights = "adapter_model.safetensors"
)

// adapterFiles are the files of a random adapter for a model, as a hub has them.
func adapterFiles(t *testing.T, c tinymodel.Config) map[string]hubtest.File {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "adapter")
	if err := (tinymodel.Adapter{Seed: 1, Rank: 4, Alpha: 8}).Write(dir, c); err != nil {
		t.Fatal(err)
	}
	files := map[string]hubtest.File{"README.md": {Content: []byte("read me")}}
	for _, name := range []string{adapterConfig, adapterWeights} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = hubtest.File{Content: content, LFS: name == adapterWeights}
	}
	return files
}

// family is that of published.
func family() tinymodel.Config {
	c := tinymodel.Default()
	c.Family = tinymodel.Qwen3
	return c
}

// checkAdapter wants the record of a model with one adapter, of which nothing but its files was fetched.
func checkAdapter(t *testing.T, rec model.Record, files map[string]hubtest.File, stand *hubtest.Hub) {
	t.Helper()
	if err := rec.Validate(); err != nil {
		t.Error(err)
	}
	a := rec.Adapters[0]
	if len(rec.Adapters) != 1 || a.Name != "sql" || a.Source != "hf://org/sql" || len(a.Commit) != 40 || a.Digest != model.DigestOf(a.Files) || len(a.Files) != 2 ||
		a.Bytes() != int64(len(files[adapterConfig].Content)+len(files[adapterWeights].Content)) {
		t.Errorf("%+v", rec.Adapters)
	}
	for _, request := range stand.Requests() {
		if strings.Contains(request, "README") {
			t.Errorf("it was fetched: %s", request)
		}
	}
}

// Adapters are inspected with their model: what the engine would refuse later is refused
// before anything is downloaded, with the adapter's name, what is wrong and what to do.
func TestAdaptersAreJudgedAgainstTheirModel(t *testing.T) {
	_, base := published(t, false)
	wide := family()
	wide.Hidden *= 2
	config := func(from, to string) func(map[string]hubtest.File) {
		return func(files map[string]hubtest.File) {
			files[adapterConfig] = hubtest.File{Content: []byte(strings.Replace(string(files[adapterConfig].Content), from, to, 1))}
		}
	}
	for name, c := range map[string]struct {
		size   *tinymodel.Config
		change func(map[string]hubtest.File)
		reason string
		says   []string
	}{
		"as it should be":      {},
		"of another model":     {size: &wide, reason: v1alpha1.ReasonInvalidModel, says: []string{"of another model", "shape"}},
		"another rank":         {change: config(`"r": 4`, `"r": 8`), reason: v1alpha1.ReasonInvalidModel, says: []string{"has rank 4", "says 8"}},
		"DoRA":                 {change: config(`"r": 4`, `"r": 4,"use_dora":true`), reason: v1alpha1.ReasonUnsupportedModel, says: []string{"use_dora", "merge it"}},
		"another method":       {change: config(`"LORA"`, `"IA3"`), reason: v1alpha1.ReasonUnsupportedModel, says: []string{"peft_type", "IA3"}},
		"trained biases":       {change: config(`"r": 4`, `"r": 4,"bias":"all"`), reason: v1alpha1.ReasonUnsupportedModel, says: []string{"bias", "all"}},
		"an unknown option":    {change: config(`"r": 4`, `"r": 4,"lora_new":[1]`), reason: v1alpha1.ReasonUnsupportedModel, says: []string{"lora_new"}},
		"no configuration":     {change: func(f map[string]hubtest.File) { delete(f, adapterConfig) }, reason: v1alpha1.ReasonInvalidModel, says: []string{adapterConfig}},
		"no factors":           {change: func(f map[string]hubtest.File) { delete(f, adapterWeights) }, reason: v1alpha1.ReasonInvalidModel, says: []string{adapterWeights, "adapters.safetensors"}},
		"factors of two kinds": {change: func(f map[string]hubtest.File) { f["adapters.safetensors"] = f[adapterWeights] }, reason: v1alpha1.ReasonInvalidModel, says: []string{"either"}},
		"a layer the model has not": {change: func(f map[string]hubtest.File) {
			content := strings.ReplaceAll(string(f[adapterWeights].Content), "self_attn.q_proj", "self_attn.x_proj")
			f[adapterWeights] = hubtest.File{Content: []byte(content), LFS: true}
		}, reason: v1alpha1.ReasonUnsupportedModel, says: []string{"self_attn.x_proj"}},
	} {
		t.Run(name, func(t *testing.T) {
			size := family()
			if c.size != nil {
				size = *c.size
			}
			files := adapterFiles(t, size)
			if c.change != nil {
				before := fmt.Sprint(files)
				if c.change(files); fmt.Sprint(files) == before {
					t.Fatal("the adapter is as before")
				}
			}
			r, stand := onHub(t, hubtest.Of(base))
			stand.Put("org/sql", hubtest.Of(files))
			rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny", Adapters: []v1alpha1.AdapterSpec{{Name: "sql", Source: "hf://org/sql"}}})
			if download.Reason(err, "") != c.reason {
				t.Fatalf("%v, want %s", err, c.reason)
			}
			if err != nil {
				for _, word := range append(c.says, "sql") {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("%q does not contain %q", err, word)
					}
				}
				return
			}
			checkAdapter(t, rec, files, stand)
		})
	}
}

// An adapter in the model root is read in place, and one for a GGUF file is refused.
func TestAdaptersOfTheModelRoot(t *testing.T) {
	root := t.TempDir()
	if err := tinymodel.WriteFolder(filepath.Join(root, "model"), family(), tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	if err := tinymodel.Write(filepath.Join(root, "m.gguf"), tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	if err := (tinymodel.Adapter{Seed: 1, Rank: 4, Alpha: 8}).Write(filepath.Join(root, "one"), family()); err != nil {
		t.Fatal(err)
	}
	held, err := store.OpenRoot(root, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, c := range []struct{ source, adapter, reason string }{
		{"file://model", "file://one", ""},
		{"file://model", "file://none", v1alpha1.ReasonSourceNotFound},
		{"file://model", "file://model", v1alpha1.ReasonInvalidModel},
		{"file://m.gguf", "file://one", v1alpha1.ReasonUnsupportedModel},
	} {
		rec, err := (&Resolver{Root: held}).Resolve(t.Context(), v1alpha1.Inspection{Source: c.source, Adapters: []v1alpha1.AdapterSpec{{Name: "one", Source: c.adapter}}})
		if got := download.Reason(err, ""); got != c.reason {
			t.Errorf("%s with %s: %v, want %q", c.source, c.adapter, err, c.reason)
		}
		if err == nil && (len(rec.Adapters) != 1 || len(rec.Adapters[0].Files) != 2) {
			t.Errorf("%+v", rec.Adapters)
		}
	}
}

// TestAnAdapterElsewhereGetsNoCredential: the credential of a model is sent only to
// the server that it is for.
func TestAnAdapterElsewhereGetsNoCredential(t *testing.T) {
	_, base := published(t, false)
	repo := hubtest.Of(base)
	repo.Private, repo.Token = true, "hf_secret"
	r, stand := onHub(t, repo)
	private := hubtest.Of(adapterFiles(t, family()))
	private.Private, private.Token = true, "hf_secret"
	stand.Put("org/sql", private)
	asked := map[string]int{}
	r.Token = func(ref string) (download.Bearer, bool) { asked[ref]++; return "hf_secret", ref == "ref" }
	order := v1alpha1.Inspection{Source: "hf://org/tiny", TokenRef: "ref", Adapters: []v1alpha1.AdapterSpec{{Name: "sql", Source: "hf://org/sql"}}}
	if _, err := r.Resolve(t.Context(), order); err != nil {
		t.Errorf("an adapter of the same hub: %v", err)
	}
	clear(asked)
	for _, elsewhere := range []string{"oci://evil.example/org/sql:v1", "s3://bucket/sql?endpoint=https://evil.example"} {
		order.Adapters[0].Source = elsewhere
		if _, err := r.Resolve(t.Context(), order); err == nil || len(asked) != 0 {
			t.Errorf("%s: %v, with the credentials of %v", elsewhere, err, asked)
		}
	}
}

// TestJudgingAnAdapterEndsWithItsContext: an inspection that was stopped is no verdict on
// the adapter.
func TestJudgingAnAdapterEndsWithItsContext(t *testing.T) {
	base, dir := filepath.Join(t.TempDir(), "model"), filepath.Join(t.TempDir(), "adapter")
	if err := tinymodel.WriteFolder(base, family(), tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	if err := (tinymodel.Adapter{Seed: 1, Rank: 4, Alpha: 8}).Write(dir, family()); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := foundAdapters{{dir: dir}}
	if err := all.check(t.Context(), weights.NewBudget(weights.HeaderMemory), f); err != nil {
		t.Fatal(err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	var verdict *download.Error
	if err := all.check(stopped, weights.NewBudget(weights.HeaderMemory), f); !errors.Is(err, context.Canceled) || errors.As(err, &verdict) {
		t.Errorf("%v, want the context's error", err)
	}
}

// TestAnAdapterTakesTheMemoryOfItsFiles: by their size memory is reserved, but factors of single
// experts take as much as those of all.
func TestAnAdapterTakesTheMemoryOfItsFiles(t *testing.T) {
	base, dir := filepath.Join(t.TempDir(), "model"), filepath.Join(t.TempDir(), "adapter")
	if err := tinymodel.WriteFolder(base, family(), tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	if err := (tinymodel.Adapter{Seed: 1, Rank: 4096, Alpha: 8}).Write(dir, family()); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := os.Stat(filepath.Join(dir, adapterWeights))
	if err != nil {
		t.Fatal(err)
	}
	for bytes, reason := range map[int64]string{info.Size(): "", info.Size() - beyondFiles: "", info.Size() / 2: v1alpha1.ReasonUnsupportedModel} {
		all := foundAdapters{{Adapter: model.Adapter{Name: "experts", Files: []model.File{{Path: adapterWeights, Bytes: bytes}}}, dir: dir}}
		if err := all.check(t.Context(), weights.NewBudget(weights.HeaderMemory), f); download.Reason(err, "") != reason {
			t.Errorf("factors of %d bytes in files of %d: %v, want %q", info.Size(), bytes, err, reason)
		}
	}
}

// TestCopiesOfAllAdaptersAreBounded: the copies of all adapters of an order are bounded together,
// as those of a model.
func TestCopiesOfAllAdaptersAreBounded(t *testing.T) {
	_, base := published(t, false)
	files := adapterFiles(t, family())
	files[adapterWeights] = hubtest.File{Content: padded(files[adapterWeights].Content, 512<<10), LFS: true}
	r, stand := onHub(t, hubtest.Of(base))
	r.headerBytes = 1400 << 10 // 2 of them
	order := v1alpha1.Inspection{Source: "hf://org/tiny"}
	for _, name := range []string{"one", "two", "three"} {
		stand.Put("org/"+name, hubtest.Of(files))
		order.Adapters = append(order.Adapters, v1alpha1.AdapterSpec{Name: name, Source: "hf://org/" + name})
	}
	if _, err := r.Resolve(t.Context(), order); download.Reason(err, "") != v1alpha1.ReasonInvalidModel || !strings.Contains(err.Error(), "adapter three") {
		t.Errorf("three adapters: %v, want the third one refused", err)
	}
	order.Adapters = order.Adapters[:2]
	if _, err := r.Resolve(t.Context(), order); err != nil {
		t.Errorf("two adapters: %v", err)
	}
}
