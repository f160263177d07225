//go:build !race

package family_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
)

// hostile are values that a model may have anywhere in its configuration.
func hostile() []any {
	return []any{json.Number("0"), json.Number("-1"), json.Number("9223372036854775807"), json.Number("1e308"), "x", []any{}, []any{json.Number("0")}, []any{map[string]any{}}, map[string]any{}}
}

// changes calls a function for each value inside a configuration, while that is replaced.
func changes(v any, at string, each func(at string, value any)) {
	members, list := map[string]any{}, []any{}
	switch v := v.(type) {
	case map[string]any:
		members = v
	case []any:
		list = v[:min(len(v), 2)]
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		before := members[key]
		changes(before, at+"."+key, each)
		for _, bad := range hostile() {
			members[key] = bad
			each(at+"."+key, bad)
		}
		delete(members, key)
		each(at+"."+key, nil)
		members[key] = before
	}
	for i, before := range list {
		at := fmt.Sprintf("%s[%d]", at, i)
		changes(before, at, each)
		for _, bad := range hostile() {
			list[i] = bad
			each(at, bad)
		}
		list[i] = before
	}
}

// ends fails the test if reading a configuration panics.
func ends(t *testing.T, what string, read func()) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s: %v", what, p)
		}
	}()
	read()
}

func TestAttackNoValueOfAConfigurationEndsTheProcess(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "arch", "testdata", "families", "*.json"))
	if err != nil || len(files) < 40 {
		t.Fatal(len(files), err)
	}
	configs := map[string]map[string]any{"bert": encoderConfig("bert"), "xlm-roberta": encoderConfig("xlm-roberta")}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		configs[name] = configOf(t, name)
	}
	for _, name := range []string{"qwen3_vl", "qwen3_5", "gemma3", "gemma4", "gemma4 small"} {
		configs["tower of "+name] = seeing(t, name)
	}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		config := configs[name]
		if _, err := family.NewConfig(config).Dimensions(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		changes(config, name, func(at string, value any) {
			ends(t, fmt.Sprintf("%s is %v", at, value), func() { _, _ = family.NewConfig(config).Dimensions() })
		})
	}
}

func encoderConfig(kind string) map[string]any {
	return map[string]any{
		"model_type": kind, "num_hidden_layers": json.Number("2"), "hidden_size": json.Number("48"), "intermediate_size": json.Number("96"),
		"num_attention_heads": json.Number("3"), "vocab_size": json.Number("104"), "max_position_embeddings": json.Number("64"),
		"layer_norm_eps": json.Number("1e-12"), "type_vocab_size": json.Number("2"), "pad_token_id": json.Number("0"), "hidden_act": "gelu",
	}
}

// seeing is the configuration of a model with a vision tower.
func seeing(t *testing.T, name string) map[string]any {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "arch", "testdata", "vision", "towers.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range casesOf(t, b) {
		if c.Name == name {
			return c.Config
		}
	}
	t.Fatalf("there is no tower of %s", name)
	return nil
}

// keys is the metadata of a GGUF file. Keys that it does not have are 8, or 1 as a float.
type keys struct {
	arch string
	set  map[string]any
	read map[string]bool
}

func (k keys) Value(key string) any {
	k.read[key] = true
	if v, ok := k.set[key]; ok {
		return v
	}
	return int64(8)
}

func (k keys) Keys(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(k.set)), func(key string) bool { return !strings.HasPrefix(key, prefix) })
}

func (k keys) Text(key string) (string, bool) {
	if key == "general.architecture" {
		return k.arch, true
	}
	v, ok := k.Value(key).(string)
	return v, ok
}

func (k keys) Integer(key string) (int64, bool) {
	v, ok := k.Value(key).(int64)
	return v, ok
}

func (k keys) Float(key string) (float64, bool) {
	if v, ok := k.Value(key).(float64); ok {
		return v, true
	}
	return 1, k.set[key] == nil
}

func TestAttackNoValueOfMetadataEndsTheProcess(t *testing.T) {
	for _, f := range family.All() {
		if f.GGUF == nil {
			continue
		}
		k := keys{f.GGUF.Name, map[string]any{}, map[string]bool{}}
		_, _ = family.OfMetadata(k)
		for _, key := range slices.Sorted(maps.Keys(k.read)) {
			for _, bad := range []any{int64(0), int64(-1), int64(1) << 62, 0.0, "yarn", nil} {
				k.set[key] = bad
				ends(t, fmt.Sprintf("%s is %v", key, bad), func() { _, _ = family.OfMetadata(k) })
			}
			delete(k.set, key)
		}
	}
}
