//go:build !race

package weights_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// mlx-lm 0.32.2 reads every model*.safetensors and no index (utils.py, load_model), and
// transformers 5 no index of a model that is in model.safetensors.
func TestTensorsAndNotTheIndexDecideWhatIsThere(t *testing.T) {
	const index, first, second = "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	for name, change := range map[string]func(m *modelFolder){
		"the index of its files": func(*modelFolder) {},
		"an index of five files of another build": func(m *modelFolder) {
			for name := range m.index {
				m.index[name] = "model-00005-of-00005.safetensors"
			}
		},
		"an index of several files for one file": func(m *modelFolder) {
			all := m.files[first]
			for name, s := range m.files[second] {
				all[name] = s
			}
			m.files = map[string]map[string]stored{oneFile: all}
		},
		"an index without a tensor":               func(m *modelFolder) { delete(m.index, "model.norm.weight") },
		"an index with a tensor that no file has": func(m *modelFolder) { m.index["model.layers.0.more.weight"] = first },
		"an index that exchanges the files": func(m *modelFolder) {
			for name, file := range m.index {
				m.index[name] = map[string]string{first: second, second: first}[file]
			}
		},
		"an index without a file that is there": func(m *modelFolder) {
			m.files["model-extra.safetensors"] = map[string]stored{"model.norm.weight": m.files[m.index["model.norm.weight"]]["model.norm.weight"]}
			delete(m.files[m.index["model.norm.weight"]], "model.norm.weight")
			delete(m.index, "model.norm.weight")
		},
		"an index of weights in another format": func(m *modelFolder) { m.index = map[string]string{"model.norm.weight": "pytorch_model.bin"} },
		"an index that leads out":               func(m *modelFolder) { m.index["model.norm.weight"] = "../model-other.safetensors" },
		"an index that is not JSON":             func(m *modelFolder) { m.literal[index] = "[" },
		"no index":                              func(m *modelFolder) { m.index = nil },
	} {
		t.Run(name, func(t *testing.T) {
			plain, m := newFolder("llama"), newFolder("llama")
			m.shards(2)
			change(m)
			sameTensors(t, plain, m)
		})
	}
	t.Run("an index that is a link out of the folder", func(t *testing.T) {
		m := newFolder("llama")
		dir := m.write(t)
		if err := os.Symlink("/etc/hostname", filepath.Join(dir, index)); err != nil {
			t.Fatal(err)
		}
		openAt(t, dir)
	})
}

// sameTensors opens two folders, which must hold equal tensors.
func sameTensors(t *testing.T, a, b *modelFolder) {
	t.Helper()
	want, got := openFolder(t, a), openFolder(t, b)
	if len(want.Entries()) != len(got.Entries()) {
		t.Fatalf("%d tensors, want %d", len(got.Entries()), len(want.Entries()))
	}
	for _, e := range want.Entries() {
		x, y := matrixOf(t, want, e.Path), matrixOf(t, got, e.Path)
		if !slices.EqualFunc(x, y, func(p, q []float32) bool { return slices.Equal(p, q) }) {
			t.Errorf("%s differs", e.Path)
		}
	}
}
