//go:build !race

package weights_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// withEncoder is a GGUF file with one more tensor, of an encoder, which is this many bytes long and
// begins where the others end at the latest.
func withEncoder(t *testing.T, file []byte, bytesLong int64) []byte {
	t.Helper()
	at := bytes.Index(file, []byte("token_embd.weight")) - 8
	more := new(raw).tensor("mm.big", 0, 1<<20, 1<<10, uint64(bytesLong>>12)).Bytes()
	out := append(append(bytes.Clone(file[:at]), more...), file[at:]...)
	binary.LittleEndian.PutUint64(out[8:], binary.LittleEndian.Uint64(out[8:])+1)
	return out
}

// Quotas count the memory that weights take, not the disk: files have to be about as large.
func TestFilesAreNotMostlyBytesThatNoEngineReads(t *testing.T) {
	const small, large = int64(1) << 30, int64(4) << 30
	plain := tiny(t, tinymodel.Default())
	for name, facts := range map[string]func(more int64) error{
		"a tail of a GGUF file": func(more int64) error {
			h, err := weights.ReadHeader(bytes.NewReader(plain), int64(len(plain))+more)
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.Facts()
			return err
		},
		"an encoder in a GGUF file": func(more int64) error {
			file := withEncoder(t, plain, more)
			h, err := weights.ReadHeader(bytes.NewReader(file), 2<<20+more)
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.Facts()
			return err
		},
		"a tensor of a folder that is dropped": func(more int64) error {
			dir := newFolder("llama").write(t)
			header := fmt.Sprintf(`{"model.layers.0.self_attn.rotary_emb.inv_freq":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, more, more)
			file := filepath.Join(dir, "model-more.safetensors")
			head := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
			if err := errors.Join(os.WriteFile(file, head, 0o600), os.Truncate(file, int64(len(head))+more)); err != nil {
				t.Fatal(err)
			}
			_, err := openAt(t, dir).Facts()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := facts(small - 2<<20); err != nil {
				t.Errorf("%d bytes more: %v", small, err)
			}
			if err := facts(large); !errors.Is(err, weights.ErrInvalid) {
				t.Errorf("%d bytes more: %v, want ErrInvalid", large, err)
			}
		})
	}
}
