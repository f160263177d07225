package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"metalfleet.dev/metalfleet/agent/upgrade"
)

// Types of the statement, of https://slsa.dev/spec/v1.0/provenance.
const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	buildType     = "https://metalfleet.dev/build/release/v1"
)

// statement records the commit and the compiler of a release. It has no build time: the
// same commit gives the same bytes.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	InternalParameters   map[string]string `json:"internalParameters"`
	ResolvedDependencies []resource        `json:"resolvedDependencies"`
}

type runDetails struct {
	Builder builder `json:"builder"`
}

type builder struct {
	ID string `json:"id"`
}

func provenanceFile(version string) string { return "metalfleet_" + version + ".intoto.json" }

// statement is the provenance of the files in the release's folder.
func (r *release) statement() (statement, error) {
	s := statement{Type: statementType, PredicateType: predicateType, Predicate: predicate{
		BuildDefinition: buildDefinition{
			BuildType:          buildType,
			ExternalParameters: map[string]string{"repository": r.home, "version": r.version},
			InternalParameters: map[string]string{"go": runtime.Version()},
			ResolvedDependencies: []resource{
				{URI: "git+" + r.home + "@" + r.commit, Digest: map[string]string{"gitCommit": r.commit}},
			},
		},
		RunDetails: runDetails{builder{r.home + "/hack/release"}},
	}}
	found, err := os.ReadDir(r.out)
	if err != nil {
		return s, err
	}
	for _, f := range found {
		sum, err := digest(filepath.Join(r.out, f.Name()))
		if err != nil {
			return s, err
		}
		s.Subject = append(s.Subject, resource{Name: f.Name(), Digest: map[string]string{"sha256": sum}})
	}
	return s, nil
}

// writeProvenance writes the provenance of all files in the folder.
func (r *release) writeProvenance() error {
	s, err := r.statement()
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, provenanceFile(r.version)), append(b, '\n'), 0o644)
}

// sign writes a signature for every file, as `cosign sign-blob --key` does.
// Signatures are random, so that the sums do not name them.
func (r *release) sign() error {
	if r.key == "" {
		return nil
	}
	key, err := readKey(r.key)
	if err != nil {
		return fmt.Errorf("-key %s: %w", r.key, err)
	}
	for _, name := range append(files(r.version), sums) {
		sum, err := digest(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		raw, err := hex.DecodeString(sum)
		if err != nil {
			return err
		}
		der, err := ecdsa.SignASN1(rand.Reader, key, raw)
		if err != nil {
			return fmt.Errorf("sign %s: %w", name, err)
		}
		text := base64.StdEncoding.EncodeToString(der) + "\n"
		if err := os.WriteFile(filepath.Join(r.out, name+upgrade.SignatureSuffix), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// readKey reads a private key in PEM, of PKCS #8 or SEC 1, without a password.
func readKey(file string) (*ecdsa.PrivateKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it contains no PEM")
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil && key.Curve == elliptic.P256() {
		return key, nil
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("want a private key without a password: %w", err)
	}
	key, ok := any.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("want an ECDSA P-256 key")
	}
	return key, nil
}

// provenance checks that the statement names each file with its digest.
func (c *checker) provenance() {
	name := provenanceFile(c.version)
	b, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		return // checkFolder has reported it
	}
	var s statement
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil || s.Type != statementType || s.PredicateType != predicateType {
		c.add("%s is no statement of provenance (%v)", name, err)
		return
	}
	var want []resource
	for _, f := range files(c.version) {
		if sum, err := digest(filepath.Join(c.dir, f)); err == nil && f != name {
			want = append(want, resource{Name: f, Digest: map[string]string{"sha256": sum}})
		}
	}
	same := func(a, b resource) bool { return a.Name == b.Name && a.Digest["sha256"] == b.Digest["sha256"] }
	if !slices.EqualFunc(s.Subject, want, same) {
		c.add("%s does not name each file with its digest", name)
	}
	deps := s.Predicate.BuildDefinition.ResolvedDependencies
	if len(deps) != 1 || len(deps[0].Digest["gitCommit"]) != 40 {
		c.add("%s names no commit", name)
	}
}

// signatures checks that one of some keys signed each file.
func (c *checker) signatures(file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		c.add("%v", err)
		return
	}
	keys, err := upgrade.ReadKeys(text)
	if err != nil {
		c.add("%s: %v", file, err)
		return
	}
	for _, name := range append(files(c.version), sums) {
		sum, err := digest(filepath.Join(c.dir, name))
		if err != nil {
			continue // checkFolder has reported it
		}
		signature, err := os.ReadFile(filepath.Join(c.dir, name+upgrade.SignatureSuffix))
		if err == nil {
			err = keys.Verify(sum, signature)
		}
		if err != nil {
			c.add("signature of %s: %v", name, err)
		}
	}
}
