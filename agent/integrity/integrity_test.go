package integrity

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckFindsWhatChanged(t *testing.T) {
	for name, test := range map[string]struct {
		change func(dir string) error
		want   string // in the error; empty: none
	}{
		"nothing":                  {func(string) error { return nil }, ""},
		"a file of no concern":     {write("notes.txt", "x"), ""},
		"the program":              {write("engine", "other"), "engine was changed"},
		"a library":                {write("lib/libmlx.so", "other"), "libmlx.so was changed"},
		"a library that was added": {write("libevil.dylib", "x"), "libevil.dylib was added"},
		"a program that is gone":   {func(dir string) error { return os.Remove(filepath.Join(dir, "engine")) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(dir, "lib"), 0o700), write("engine", "program")(dir), write("lib/libmlx.so", "library")(dir)); err != nil {
				t.Fatal(err)
			}
			f, err := Of(dir, "engine")
			if err != nil {
				t.Fatal(err)
			}
			if err := test.change(dir); err != nil {
				t.Fatal(err)
			}
			err = f.Check(dir)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func write(name, content string) func(string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600) }
}
