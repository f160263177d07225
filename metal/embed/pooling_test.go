package embed_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

const (
	transformer = `{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"}`
	pooling     = `{"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"}`
	normalize   = `{"idx":2,"name":"2","path":"2_Normalize","type":"sentence_transformers.models.Normalize"}`
)

// read writes files, in sub-folders where their names say so, and reads them.
func read(t *testing.T, files map[string]string) (embed.Pooling, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := folder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return embed.Read(f, 384)
}

func list(modules ...string) string { return "[" + strings.Join(modules, ",") + "]" }

func TestFoldersSayHowTheyPool(t *testing.T) {
	old := func(mode string) string {
		return `{"word_embedding_dimension":384,"pooling_mode_cls_token":false,"pooling_mode_mean_tokens":false,"pooling_mode_max_tokens":false,` +
			strings.ReplaceAll(`"MODE":true,`, "MODE", mode) + `"include_prompt":true}`
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  embed.Pooling
	}{
		"nothing: a decoder": {files: map[string]string{}, want: embed.Pooling{Mode: embed.Last, Normalize: true}},
		"mean and normalised, as all-MiniLM": {files: map[string]string{
			"modules.json": list(transformer, pooling, normalize), "1_Pooling/config.json": old("pooling_mode_mean_tokens"),
		}, want: embed.Pooling{Mode: embed.Mean, Normalize: true}},
		"last token, as Qwen3-Embedding": {files: map[string]string{
			"modules.json": list(transformer, pooling, normalize), "1_Pooling/config.json": old("pooling_mode_lasttoken"),
		}, want: embed.Pooling{Mode: embed.Last, Normalize: true}},
		"first token, not normalised": {files: map[string]string{
			"modules.json": list(transformer, pooling), "1_Pooling/config.json": old("pooling_mode_cls_token"),
		}, want: embed.Pooling{Mode: embed.First}},
		"no mode is mean": {files: map[string]string{
			"modules.json": list(transformer, pooling), "1_Pooling/config.json": `{"word_embedding_dimension":384}`,
		}, want: embed.Pooling{Mode: embed.Mean}},
		"the words of version 6": {files: map[string]string{
			"modules.json": list(`{"type":"sentence_transformers.base.modules.transformer.Transformer","path":""}`,
				`{"type":"sentence_transformers.sentence_transformer.modules.pooling.Pooling","path":"1_Pooling"}`,
				`{"type":"sentence_transformers.base.modules.normalize.Normalize","path":"2_Normalize"}`),
			"1_Pooling/config.json":   `{"embedding_dimension":384,"pooling_mode":"lasttoken","include_prompt":true}`,
			"2_Normalize/config.json": `{"module_input_name":"sentence_embedding","module_output_name":"sentence_embedding"}`,
		}, want: embed.Pooling{Mode: embed.Last, Normalize: true}},
		"the newer key wins": {files: map[string]string{
			"modules.json": list(transformer, pooling), "1_Pooling/config.json": `{"pooling_mode":["cls"],"pooling_mode_mean_tokens":true}`,
		}, want: embed.Pooling{Mode: embed.First}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := read(t, c.files); err != nil || got != c.want {
				t.Errorf("pooling %+v (%v), want %+v", got, err, c.want)
			}
		})
	}
}

func TestPoolingsThatAreNotBuiltAreRefusedByName(t *testing.T) {
	with := func(config string) map[string]string {
		return map[string]string{"modules.json": list(transformer, pooling), "1_Pooling/config.json": config}
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  error
		says  string
	}{
		"the largest":              {files: with(`{"pooling_mode_max_tokens":true}`), want: weights.ErrUnsupported, says: `"max"`},
		"weights by position":      {files: with(`{"pooling_mode":"weightedmean"}`), want: weights.ErrUnsupported, says: `"weightedmean"`},
		"two at once":              {files: with(`{"pooling_mode_mean_tokens":true,"pooling_mode_cls_token":true}`), want: weights.ErrUnsupported, says: `"cls and mean"`},
		"a mode that is a number":  {files: with(`{"pooling_mode":3}`), want: weights.ErrInvalid, says: "name"},
		"modes that are numbers":   {files: with(`{"pooling_mode":[3]}`), want: weights.ErrInvalid, says: "names"},
		"a width of another model": {files: with(`{"word_embedding_dimension":768}`), want: weights.ErrInvalid, says: "768"},
		"text that is no JSON":     {files: with(`{`), want: weights.ErrInvalid, says: "config.json"},
		"text without end":         {files: with(`{"a":"` + strings.Repeat("x", 1<<20) + `"}`), want: weights.ErrInvalid, says: "config.json"},
		"no configuration":         {files: map[string]string{"modules.json": list(transformer, pooling), "1_Pooling/other": ""}, want: weights.ErrMissing, says: "config.json"},
		"no folder":                {files: map[string]string{"modules.json": list(transformer, pooling)}, want: weights.ErrMissing, says: "1_Pooling"},
		"a folder outside":         {files: map[string]string{"modules.json": list(transformer, `{"type":"x.Pooling","path":"../../1_Pooling"}`)}, want: weights.ErrInvalid, says: "not a direct subfolder"},
		"a path of folders":        {files: map[string]string{"modules.json": list(transformer, `{"type":"x.Pooling","path":"a/b"}`)}, want: weights.ErrInvalid, says: "a/b"},
		"no pooling":               {files: map[string]string{"modules.json": list(transformer)}, want: weights.ErrMissing, says: "Pooling"},
		"no module":                {files: map[string]string{"modules.json": `[]`}, want: weights.ErrMissing, says: "Transformer"},
		"modules that are no list": {files: map[string]string{"modules.json": `{}`}, want: weights.ErrInvalid, says: "modules.json"},
		"a dense layer":            {files: map[string]string{"modules.json": list(transformer, pooling, `{"type":"sentence_transformers.models.Dense","path":"2_Dense"}`), "1_Pooling/config.json": `{}`}, want: weights.ErrUnsupported, says: `"Dense"`},
		"a layer after the norm":   {files: map[string]string{"modules.json": list(transformer, pooling, normalize, `{"type":"x.Dense","path":"3"}`), "1_Pooling/config.json": `{}`}, want: weights.ErrUnsupported, says: `"Dense"`},
		"another kind of text":     {files: map[string]string{"modules.json": list(`{"type":"x.BoW","path":""}`, pooling)}, want: weights.ErrUnsupported, says: `"BoW"`},
		"states that are normalised": {files: map[string]string{"modules.json": list(transformer, pooling, normalize), "1_Pooling/config.json": `{}`,
			"2_Normalize/config.json": `{"module_input_name":"token_embeddings"}`}, want: weights.ErrUnsupported, says: `"token_embeddings"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, c.files)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 400 {
				t.Errorf("error %v, want %v with %s", err, c.want, c.says)
			}
		})
	}
}

func TestAModelThatIsAFolderIsAskedThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteFolder(dir, tinymodel.Default(), tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "1_Pooling"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"modules.json": list(transformer, pooling), "1_Pooling/config.json": `{"pooling_mode_mean_tokens":true}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p, err := embed.Of(f); err != nil || p != (embed.Pooling{Mode: embed.Mean}) {
		t.Errorf("pooling %v (%v), want the mean", p, err)
	}
}

func TestGGUFSaysHowItPools(t *testing.T) {
	for value, want := range map[any]embed.Pooling{
		uint64(0): embed.Default(), uint64(1): {Mode: embed.Mean, Normalize: true}, uint64(2): {Mode: embed.First, Normalize: true}, uint64(3): {Mode: embed.Last, Normalize: true},
	} {
		f := &weights.File{Dim: family.Dimensions{Architecture: "qwen3"}, Metadata: map[string]any{"qwen3.pooling_type": value}}
		if p, err := embed.Of(f); err != nil || p != want {
			t.Errorf("type %v: pooling %v (%v), want %v", value, p, err, want)
		}
	}
	for value, want := range map[any]error{uint64(4): weights.ErrUnsupported, "mean": weights.ErrInvalid} {
		f := &weights.File{Dim: family.Dimensions{Architecture: "qwen3"}, Metadata: map[string]any{"qwen3.pooling_type": value}}
		if _, err := embed.Of(f); !errors.Is(err, want) {
			t.Errorf("type %v: error %v, want %v", value, err, want)
		}
	}
}
