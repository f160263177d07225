package fleet

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// Pack writes files, by their names inside, into the archive to, and returns
// its SHA-256 in hexadecimal.
func Pack(to string, programs map[string]string) (digest string, err error) {
	f, err := os.Create(to)
	if err != nil {
		return "", fmt.Errorf("archive: %w", err)
	}
	sum := sha256.New()
	z := gzip.NewWriter(io.MultiWriter(f, sum))
	w := tar.NewWriter(z)
	for name, path := range programs {
		if err = add(w, name, path); err != nil {
			break
		}
	}
	if err = errors.Join(err, w.Close(), z.Close(), f.Close()); err != nil {
		return "", fmt.Errorf("archive %s: %w", to, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func add(w *tar.Writer, name, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(b))}); err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}
