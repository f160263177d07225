package v1alpha1

// ModelSource is the source of a model's files.
// +kubebuilder:validation:XValidation:rule="self.source.startsWith('file://') || self.source.startsWith('https://') || !has(self.sha256)",message="sha256 is only valid for file:// and https:// sources, because other sources provide the digests of their files; remove sha256"
// +kubebuilder:validation:XValidation:rule="self.source.startsWith('hf://') || !has(self.revision)",message="revision is only valid for hf:// sources; remove revision"
// +kubebuilder:validation:XValidation:rule="self.source.startsWith('hf://') || self.source.startsWith('s3://') || self.source.startsWith('oci://') || !has(self.files)",message="files is only valid for hf://, s3:// and oci:// sources; remove files"
// +kubebuilder:validation:XValidation:rule="self.source.startsWith('hf://') || self.source.startsWith('s3://') || self.source.startsWith('oci://') || !has(self.secretRef)",message="secretRef is only valid for hf://, s3:// and oci:// sources, because other sources take no credentials; remove secretRef"
type ModelSource struct {
	// source is the URL of the weights. Valid forms are:
	// - file://PATH: a GGUF file or a folder under the model root of each Mac.
	// - https://HOST/PATH: one GGUF file.
	// - hf://OWNER/NAME: a repository of the Hugging Face Hub or its mirror;
	//   hf://OWNER/NAME/PATH is one file or folder of it.
	// - s3://BUCKET/PREFIX: a folder or a GGUF file in an Amazon S3 bucket.
	//   Append ?region=REGION for the region, and ?endpoint=https://HOST for
	//   another server that implements the S3 protocol.
	// - oci://REGISTRY/REPOSITORY:TAG or
	//   oci://REGISTRY/REPOSITORY@sha256:DIGEST: an OCI artifact whose layers
	//   are the model's files.
	//
	// For example: hf://mlx-community/Qwen3-8B-4bit.
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('file://') || self.startsWith('https://') || self.startsWith('hf://') || self.startsWith('s3://') || self.startsWith('oci://')",message="source must begin with file:// (a path under the Mac's model root), https:// (one GGUF file), hf:// (a Hugging Face repository), s3:// (a folder in a bucket) or oci:// (an artifact in a registry)"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\\\s\\\\x00-\\\\x1f]')",message="source must not contain spaces or control characters; percent-encode them"
	Source string `json:"source"`
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
	// that inspect or hold the model. The Secret depends on the source:
	// - hf://: the key token holds a Hugging Face access token. It is sent only
	//   to the hub.
	// - s3://: the keys AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and,
	//   optionally, AWS_SESSION_TOKEN hold an access key. It signs requests;
	//   the secret part is never sent.
	// - oci://: a Secret of type kubernetes.io/dockerconfigjson with a login
	//   for the registry of the source.
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

// SecretReference names a Secret in the same namespace.
type SecretReference struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="secretRef.name must be the name of a Secret in this namespace: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
}
