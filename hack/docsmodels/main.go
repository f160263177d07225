// Command docsmodels writes docs/models.md: which model families run, in which
// formats, what they are compared with, and how fast they were seen to be.
//
// It owns the page alone. Families are those of metal/arch, formats those of
// metal/weights and metal/quant; references are the records of test/oracle/goldens,
// tolerances stand in the tests beside them, speeds in docs/bench. It refuses
// to guess: what no record says is not on the page. A test fails when the page
// is not what this program writes.
//
//	go run ./hack/docsmodels            (make docs-models)
//
// Start reading at page.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const output = "docs/models.md"

func main() {
	text, err := page(".")
	if err == nil {
		err = os.WriteFile(filepath.FromSlash(output), []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docsmodels:", err)
		os.Exit(1)
	}
}
