{{/* Image of a program: (dict "root" $ "name" "operator"). */}}
{{- define "metalfleet.image" -}}
{{ .root.Values.image.registry }}/{{ .name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* Labels that select the Pods of a program. */}}
{{- define "metalfleet.selector" -}}
app.kubernetes.io/name: metalfleet
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{/* Labels of all objects of a program. */}}
{{- define "metalfleet.labels" -}}
{{ include "metalfleet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: metalfleet
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Pod security context for the restricted Pod Security Standard. */}}
{{- define "metalfleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Container security context for the same standard. */}}
{{- define "metalfleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Scheduling of the Pods of a program: (dict "root" $ "name" "gateway" "values" .Values.gateway). */}}
{{- define "metalfleet.scheduling" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "metalfleet.selector" . | nindent 6 }}
{{- end }}

{{/* Those of a list of rules that are of resources in namespaces, or the others: (dict "rules" $list "ofNamespaces" true). */}}
{{- define "metalfleet.rules" -}}
{{- $out := list }}
{{- range $rule := .rules }}
{{- $resources := list }}
{{- range $resource := $rule.resources }}
{{- if eq $.ofNamespaces (has (splitList "/" $resource | first) (list "modeldeployments" "modelreplicas" "controllerrevisions")) }}
{{- $resources = append $resources $resource }}
{{- end }}
{{- end }}
{{- if $resources }}
{{- $out = append $out (merge (dict "resources" $resources) $rule) }}
{{- end }}
{{- end }}
{{- toYaml $out }}
{{- end }}
