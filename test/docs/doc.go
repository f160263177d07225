// Package docs tests the commands and manifests of the documents.
//
// Every shell block of a page says in its info string how it is tested:
// test=local is executed here, in the order of the page, against a real API
// server, operator, gateway and three simulated Macs, as the quickstart starts
// them; test=cluster is executed by test/e2e; test=flags cannot run on this
// machine. Of every block, and of every command in a sentence, the programs,
// subcommands and flags are compared with the real ones. YAML blocks are sent to
// the API server as strict dry runs.
//
// It owns how pages are run, and refuses a command that it does not know. It
// needs what make build and make kube build, and fails without. Start reading at
// TestPages.
package docs
