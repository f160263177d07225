package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// fill overwrites a tensor of a folder with a number of 16 bits.
func fill(t *testing.T, dir, tensor string, with uint16) {
	t.Helper()
	path := filepath.Join(dir, "model.safetensors")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	body := 8 + int(binary.LittleEndian.Uint64(raw))
	var header map[string]struct {
		Offsets []int `json:"data_offsets"`
	}
	if err := json.Unmarshal(raw[8:body], &header); err != nil || len(header[tensor].Offsets) != 2 {
		t.Fatalf("%s: %v", tensor, err)
	}
	for at := header[tensor].Offsets[0]; at < header[tensor].Offsets[1]; at += 2 {
		binary.LittleEndian.PutUint16(raw[body+at:], with)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A model that cannot be loaded has an exit code of its own, and is named.
func TestDamagedFolderIsNamedWithItsFault(t *testing.T) {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ids := file(t, "[1, 2]")
	for name, c := range map[string]struct {
		damage func(dir string)
		logits bool
		code   int
		says   string
	}{
		"no tokenizer": {damage: func(dir string) { must(os.Remove(filepath.Join(dir, "tokenizer.json"))) }, code: exitModel, says: "tokenizer.json: file is missing"},
		"a folder for a tokenizer": {damage: func(dir string) {
			path := filepath.Join(dir, "tokenizer.json")
			must(os.Remove(path))
			must(os.Mkdir(path, 0o700))
		}, code: exitModel, says: "not a regular file"},
		"a pipe for a tokenizer": {damage: func(dir string) {
			path := filepath.Join(dir, "tokenizer.json")
			must(os.Remove(path))
			must(syscall.Mkfifo(path, 0o600))
		}, code: exitModel, says: "not a regular file"},
		"a configuration too large": {damage: func(dir string) {
			must(os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(strings.Repeat(" ", 5<<20)), 0o600))
		}, code: exitModel, says: "too large"},
		"infinite scales":      {damage: func(dir string) { fill(t, dir, "model.embed_tokens.scales", 0x7f80) }, code: exitModel, says: "not a finite number"},
		"logits that are none": {damage: func(dir string) { fill(t, dir, "model.norm.weight", 0x7fc0) }, logits: true, code: exitFailure, says: "logit of token 0 is not a number"},
	} {
		dir := filepath.Join(t.TempDir(), "model")
		must(tinymodel.WriteFolder(dir, tinymodel.Default(), tinymodel.Layout{Matrices: quant.AffineOf(4, 32, quant.BFloat16)}))
		c.damage(dir)
		args := []string{"generate", "--model", dir, "--prompt", "a", "--max-tokens", "1"}
		if c.logits {
			args = []string{"logits", "--model", dir, "--tokens-file", ids}
		}
		if _, stderr, code := runProgram(t, "", args...); code != c.code || !strings.Contains(stderr, c.says) || !strings.Contains(stderr, dir) {
			t.Errorf("%s: exit code %d, %q; want %d, %s and %q", name, code, stderr, c.code, dir, c.says)
		}
	}
}
