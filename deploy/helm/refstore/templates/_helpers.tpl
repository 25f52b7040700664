{{- define "refstore.name" -}}
{{- if contains "refstore" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-refstore" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "refstore.labels" -}}
app.kubernetes.io/name: refstore
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "refstore.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "refstore.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "refstore.secret" -}}
{{- default (printf "%s-stores" (include "refstore.name" .)) .Values.stores.existingSecret }}
{{- end }}

{{- define "refstore.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- /* What every container has in common. */ -}}
{{- define "refstore.container" -}}
image: {{ include "refstore.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "refstore.environment" -}}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- /* What every pod has in common. */ -}}
{{- define "refstore.pod" -}}
serviceAccountName: {{ include "refstore.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false # those of a Service refstore-api would be taken for settings, such as REFSTORE_API_PORT
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- include "refstore.placement" . }}
{{- end }}

{{- define "refstore.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The file of settings, where there is one. The checksum starts pods again that would keep to the former one. */ -}}
{{- define "refstore.configMount" -}}
{{- if .Values.config }}
- {name: config, mountPath: /etc/refstore, readOnly: true}
{{- end }}
{{- end }}

{{- define "refstore.configVolume" -}}
{{- if .Values.config }}
- {name: config, configMap: {name: {{ include "refstore.name" . }}-config}}
{{- end }}
{{- end }}

{{- define "refstore.configChecksum" -}}
{{- if .Values.config }}
annotations: {checksum/config: {{ sha256sum .Values.config }}}
{{- end }}
{{- end }}
