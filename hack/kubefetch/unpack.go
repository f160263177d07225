package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// check compares a file with its sum.
func check(file, want string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("its SHA-512 is %s..., and %s... is pinned", got[:16], want[:16])
	}
	return nil
}

// unpack writes the programs of an archive, from any folder in it, into a folder. Other
// files are skipped.
func unpack(archive, dir string, programs []string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := path.Base(h.Name)
		if h.Typeflag != tar.TypeReg || !slices.Contains(programs, name) || found[name] {
			continue
		}
		found[name] = true
		if err := write(filepath.Join(dir, name), r); err != nil {
			return err
		}
	}
	for _, name := range programs {
		if !found[name] {
			return fmt.Errorf("the archive holds no program %s", name)
		}
	}
	return nil
}

func write(file string, from io.Reader) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// try runs each program once, so that one which this machine cannot run is found
// here and not when a control plane is started.
func try(ctx context.Context, dir string, programs []string) error {
	for _, name := range programs {
		arguments := []string{"--version"}
		if name == "kubectl" {
			arguments = []string{"version", "--client"}
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		out, err := exec.CommandContext(ctx, filepath.Join(dir, name), arguments...).CombinedOutput()
		cancel()
		if err != nil {
			return fmt.Errorf("the released %s does not run on this machine: %w: %s", name, err, strings.TrimSpace(string(out[:min(len(out), 300)])))
		}
	}
	return nil
}
