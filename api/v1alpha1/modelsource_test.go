//go:build !race

package v1alpha1

import (
	"reflect"
	"testing"
)

func TestASourceOfFieldsIsTheSameAsAURL(t *testing.T) {
	files, secret := []string{"*Q8_0.gguf"}, &SecretReference{Name: "s"}
	for name, tc := range map[string]struct{ fields, url ModelSource }{
		"a URL stays": {
			fields: ModelSource{Source: "hf://o/n", Revision: "v2", Files: files, SecretRef: secret},
			url:    ModelSource{Source: "hf://o/n", Revision: "v2", Files: files, SecretRef: secret},
		},
		"a hub": {
			fields: ModelSource{HuggingFace: &HuggingFaceSource{Repo: "o/n", Revision: "v2", Files: files}, SecretRef: secret},
			url:    ModelSource{Source: "hf://o/n", Revision: "v2", Files: files, SecretRef: secret},
		},
		"a bucket": {
			fields: ModelSource{S3: &S3Source{Bucket: "models", Prefix: "a/b", Files: files}, SecretRef: secret},
			url:    ModelSource{Source: "s3://models/a/b", Files: files, SecretRef: secret},
		},
		"a whole bucket of a region": {
			fields: ModelSource{S3: &S3Source{Bucket: "models", Region: "eu-west-1"}},
			url:    ModelSource{Source: "s3://models/?region=eu-west-1"},
		},
		"a bucket of another server": {
			fields: ModelSource{S3: &S3Source{Bucket: "models", Prefix: "a", Endpoint: "https://minio.example:9000"}},
			url:    ModelSource{Source: "s3://models/a?endpoint=https://minio.example:9000"},
		},
		"a bucket of a region of another server": {
			fields: ModelSource{S3: &S3Source{Bucket: "models", Prefix: "a", Endpoint: "https://minio.example", Region: "r"}},
			url:    ModelSource{Source: "s3://models/a?endpoint=https://minio.example&region=r"},
		},
		"an artifact": {
			fields: ModelSource{OCI: &OCISource{Reference: "ghcr.io/o/n:v1", Files: files}, SecretRef: secret},
			url:    ModelSource{Source: "oci://ghcr.io/o/n:v1", Files: files, SecretRef: secret},
		},
		"a download": {
			fields: ModelSource{HTTPS: &HTTPSSource{URL: "https://h/m.gguf", SHA256: "00ff"}},
			url:    ModelSource{Source: "https://h/m.gguf", SHA256: "00ff"},
		},
		"a file": {
			fields: ModelSource{Local: &LocalSource{Path: "a/m.gguf", SHA256: "00ff"}},
			url:    ModelSource{Source: "file://a/m.gguf", SHA256: "00ff"},
		},
	} {
		if got := tc.fields.Resolved(); !reflect.DeepEqual(got, tc.url) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.url)
		}
	}
}
