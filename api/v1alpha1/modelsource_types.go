package v1alpha1

import "strings"

// ModelSource is the source of a model's files: exactly one of huggingFace, s3,
// oci, https and local, or source, which states the same as a URL.
// +kubebuilder:validation:XValidation:rule="[has(self.huggingFace), has(self.s3), has(self.oci), has(self.https), has(self.local), has(self.source)].filter(x, x).size() == 1",message="model must have exactly one of huggingFace, s3, oci, https, local and source"
// +kubebuilder:validation:XValidation:rule="has(self.source) && (self.source.startsWith('file://') || self.source.startsWith('https://')) || !has(self.sha256)",message="sha256 is only valid for file:// and https:// sources, because other sources provide the digests of their files; remove sha256, or set it in model.https or model.local"
// +kubebuilder:validation:XValidation:rule="has(self.source) && self.source.startsWith('hf://') || !has(self.revision)",message="revision is only valid for hf:// sources; remove revision, or set it in model.huggingFace"
// +kubebuilder:validation:XValidation:rule="has(self.source) && (self.source.startsWith('hf://') || self.source.startsWith('s3://') || self.source.startsWith('oci://')) || !has(self.files)",message="files is only valid for hf://, s3:// and oci:// sources; remove files, or set it in model.huggingFace, model.s3 or model.oci"
// +kubebuilder:validation:XValidation:rule="has(self.huggingFace) || has(self.s3) || has(self.oci) || has(self.source) && (self.source.startsWith('hf://') || self.source.startsWith('s3://') || self.source.startsWith('oci://')) || !has(self.secretRef)",message="secretRef is only valid for hf://, s3:// and oci:// sources, because other sources take no credentials; remove secretRef"
type ModelSource struct {
	// huggingFace is a repository of the Hugging Face Hub or its mirror: repo,
	// revision and files.
	// +optional
	HuggingFace *HuggingFaceSource `json:"huggingFace,omitempty"`
	// s3 is a folder or a GGUF file in a bucket: bucket, prefix, endpoint, region
	// and files.
	// +optional
	S3 *S3Source `json:"s3,omitempty"`
	// oci is an OCI artifact whose layers are the model's files: reference and
	// files.
	// +optional
	OCI *OCISource `json:"oci,omitempty"`
	// https is one GGUF file on a web server: url and sha256.
	// +optional
	HTTPS *HTTPSSource `json:"https,omitempty"`
	// local is a GGUF file or a folder under the model root of each Mac: path and
	// sha256.
	// +optional
	Local *LocalSource `json:"local,omitempty"`
	// source is the URL of the weights, short for one of the fields above, with
	// revision, files and sha256 next to it. Valid forms are file://PATH,
	// https://HOST/PATH, hf://OWNER/NAME with an optional /PATH,
	// s3://BUCKET/PREFIX with an optional ?region=REGION&endpoint=https://HOST,
	// oci://REGISTRY/REPOSITORY:TAG and
	// oci://REGISTRY/REPOSITORY@sha256:DIGEST. For example:
	// hf://mlx-community/Qwen3-8B-4bit.
	// +optional
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('file://') || self.startsWith('https://') || self.startsWith('hf://') || self.startsWith('s3://') || self.startsWith('oci://')",message="source must begin with file:// (a path under the Mac's model root), https:// (one GGUF file), hf:// (a Hugging Face repository), s3:// (a folder in a bucket) or oci:// (an artifact in a registry)"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\\\s\\\\x00-\\\\x1f]')",message="source must not contain spaces or control characters; percent-encode them"
	Source string `json:"source,omitempty"`
	// revision is a branch, a tag or a commit of a Hugging Face repository. The
	// operator resolves it to a commit once and keeps that commit until source
	// or revision changes. Default: main.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._/-]*$')",message="revision must be a branch, a tag or a commit: letters, digits, '.', '_', '/' and '-', beginning with a letter or digit"
	Revision string `json:"revision,omitempty"`
	// files are patterns that select the model's files in a Hugging Face
	// repository, a bucket or an OCI artifact that contains several models, for
	// example "*Q8_0.gguf". When it is empty, the source must contain exactly
	// one model.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([^\\\\[\\\\]\\\\\\\\]|\\\\[[^\\\\[\\\\]\\\\\\\\]+\\\\])+$') && !self.matches('[\\\\x00-\\\\x1f\\\\x7f]') && !self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="an entry of files must be a relative path or a file name, with the wildcards *, ? and [a-z], for example '*Q8_0.gguf' or '4bit/*', without control characters"
	Files []string `json:"files,omitempty"`
	// secretRef names a Secret in the namespace of the deployment that holds
	// the credentials for the source. The operator copies them only to Macs
	// that inspect or hold the model. For huggingFace and hf://, the key token
	// holds an access token, which is sent only to the hub. For s3, the keys
	// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, optionally,
	// AWS_SESSION_TOKEN hold an access key, which signs requests; the secret
	// part is never sent. For oci, it is a Secret of type
	// kubernetes.io/dockerconfigjson with a login for the registry.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// sha256 is the SHA-256 digest of the file, in lower-case hex. It is
	// required for https:// sources and allowed for file:// sources.
	// +optional
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{64}$')",message="sha256 must be 64 lower-case hex digits, as printed by sha256sum"
	SHA256 string `json:"sha256,omitempty"`
}

// HuggingFaceSource is a repository of the Hugging Face Hub or its mirror.
type HuggingFaceSource struct {
	// repo is the name of the repository, OWNER/NAME, for example
	// mlx-community/Qwen3-8B-4bit.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=192
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]{0,94}[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,94}[A-Za-z0-9])?$')",message="repo must be OWNER/NAME, for example mlx-community/Qwen3-8B-4bit"
	Repo string `json:"repo"`
	// revision is a branch, a tag or a commit. The operator resolves it to a
	// commit once and keeps that commit until repo or revision changes.
	// Default: main.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._/-]*$')",message="revision must be a branch, a tag or a commit: letters, digits, '.', '_', '/' and '-', beginning with a letter or digit"
	Revision string `json:"revision,omitempty"`
	// files are patterns that select the model's files, for example
	// "*Q8_0.gguf". When it is empty, the repository must contain exactly one
	// model.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([^\\\\[\\\\]\\\\\\\\]|\\\\[[^\\\\[\\\\]\\\\\\\\]+\\\\])+$') && !self.matches('[\\\\x00-\\\\x1f\\\\x7f]') && !self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="an entry of files must be a relative path or a file name, with the wildcards *, ? and [a-z], for example '*Q8_0.gguf' or '4bit/*', without control characters"
	Files []string `json:"files,omitempty"`
}

// S3Source is a folder or a GGUF file in a bucket.
type S3Source struct {
	// bucket is the name of the bucket.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9][a-z0-9.-]*[a-z0-9]$') && !self.contains('..')",message="bucket must be the name of a bucket: lower-case letters, digits, '.' and '-'"
	Bucket string `json:"bucket"`
	// prefix is the folder, or the key of a .gguf file. Default: the whole
	// bucket.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*/?$') && !self.split('/').exists(p, p in ['.', '..'])",message="prefix must be a path of letters, digits, '.', '_' and '-', without '..'; use model.source for other characters"
	Prefix string `json:"prefix,omitempty"`
	// endpoint is the URL of another server than Amazon's that implements the
	// S3 protocol, for example https://minio.example:9000.
	// +optional
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^https://[A-Za-z0-9.-]+(:[0-9]{1,5})?$')",message="endpoint must be https://HOST, optionally with a port"
	Endpoint string `json:"endpoint,omitempty"`
	// region is the region of the bucket. Default: us-east-1.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9][a-z0-9-]*$')",message="region must be the name of a region, for example eu-central-1"
	Region string `json:"region,omitempty"`
	// files are patterns that select the model's files, for example
	// "*Q8_0.gguf". When it is empty, the folder must contain exactly one model.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([^\\\\[\\\\]\\\\\\\\]|\\\\[[^\\\\[\\\\]\\\\\\\\]+\\\\])+$') && !self.matches('[\\\\x00-\\\\x1f\\\\x7f]') && !self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="an entry of files must be a relative path or a file name, with the wildcards *, ? and [a-z], for example '*Q8_0.gguf' or '4bit/*', without control characters"
	Files []string `json:"files,omitempty"`
}

// OCISource is an OCI artifact whose layers are the model's files.
type OCISource struct {
	// reference is the artifact: REGISTRY/REPOSITORY:TAG or
	// REGISTRY/REPOSITORY@sha256:DIGEST.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})$')",message="reference must be REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST"
	Reference string `json:"reference"`
	// files are patterns that select the model's files, for example
	// "*Q8_0.gguf". When it is empty, the artifact must contain exactly one
	// model.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([^\\\\[\\\\]\\\\\\\\]|\\\\[[^\\\\[\\\\]\\\\\\\\]+\\\\])+$') && !self.matches('[\\\\x00-\\\\x1f\\\\x7f]') && !self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="an entry of files must be a relative path or a file name, with the wildcards *, ? and [a-z], for example '*Q8_0.gguf' or '4bit/*', without control characters"
	Files []string `json:"files,omitempty"`
}

// HTTPSSource is one GGUF file on a web server.
type HTTPSSource struct {
	// url is the address of the file, https://HOST/PATH.
	// +required
	// +kubebuilder:validation:MinLength=10
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('https://') && !self.matches('[\\\\s\\\\x00-\\\\x1f]')",message="url must begin with https:// and must not contain spaces or control characters; percent-encode them"
	URL string `json:"url"`
	// sha256 is the SHA-256 digest of the file, in lower-case hex.
	// +required
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{64}$')",message="sha256 must be 64 lower-case hex digits, as printed by sha256sum"
	SHA256 string `json:"sha256"`
}

// LocalSource is a GGUF file or a folder under the model root of each Mac.
type LocalSource struct {
	// path is relative to the model root, for example team-a/model.gguf.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*/?$') && !self.split('/').exists(p, p in ['.', '..'])",message="path must be relative to the model root, of letters, digits, '.', '_' and '-', without '..'; use model.source for other characters"
	Path string `json:"path"`
	// sha256 is the SHA-256 digest of the file, in lower-case hex. Default: the
	// file is not verified against a known digest.
	// +optional
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{64}$')",message="sha256 must be 64 lower-case hex digits, as printed by sha256sum"
	SHA256 string `json:"sha256,omitempty"`
}

// Resolved returns the source in its URL form, which the operator and the Macs
// use. The admission policy of tenants computes the same URL.
func (m ModelSource) Resolved() ModelSource {
	out := ModelSource{Source: m.Source, Revision: m.Revision, Files: m.Files, SHA256: m.SHA256, SecretRef: m.SecretRef}
	switch {
	case m.HuggingFace != nil:
		out.Source, out.Revision, out.Files = "hf://"+m.HuggingFace.Repo, m.HuggingFace.Revision, m.HuggingFace.Files
	case m.S3 != nil:
		out.Source, out.Files = m.S3.url(), m.S3.Files
	case m.OCI != nil:
		out.Source, out.Files = "oci://"+m.OCI.Reference, m.OCI.Files
	case m.HTTPS != nil:
		out.Source, out.SHA256 = m.HTTPS.URL, m.HTTPS.SHA256
	case m.Local != nil:
		out.Source, out.SHA256 = "file://"+m.Local.Path, m.Local.SHA256
	}
	return out
}

// url returns the s3:// URL. The schema allows no character that needs an escape.
func (s *S3Source) url() string {
	var query []string
	if s.Endpoint != "" {
		query = append(query, "endpoint="+s.Endpoint)
	}
	if s.Region != "" {
		query = append(query, "region="+s.Region)
	}
	out := "s3://" + s.Bucket + "/" + s.Prefix
	if len(query) > 0 {
		out += "?" + strings.Join(query, "&")
	}
	return out
}

// SecretReference names a Secret in the same namespace.
type SecretReference struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="secretRef.name must be the name of a Secret in this namespace: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
}

// AdapterSpec is a LoRA adapter, as peft or mlx-lm saves it: a folder with
// adapter_config.json, and adapter_model.safetensors or adapters.safetensors.
type AdapterSpec struct {
	// name is the part of a model name after the colon. An example is sql in
	// qwen3-8b:sql.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// source is the URL of the adapter's folder. It is written as model.source,
	// for example hf://OWNER/REPOSITORY, s3://, oci:// or file://, and the same
	// rules apply to it. The credential of model.secretRef is used if
	// both are on the hub, in the same registry, or in buckets of the same
	// endpoint and region; otherwise none is. Each Mac downloads an adapter from
	// its source, never from another Mac.
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(hf|s3|oci|file)://[^\s]+$`
	Source string `json:"source"`
	// revision is a branch, a tag or a commit of a Hugging Face repository.
	// Default: main.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._/-]*$`
	Revision string `json:"revision,omitempty"`
}
