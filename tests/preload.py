"""Imported by the forkserver: what every served process needs and what takes seconds to import.

Only imports. Nothing here may compute: a torch that has started its thread pool hangs after a fork (case F02).
"""

from __future__ import annotations

import django.conf  # noqa: F401
import gunicorn.app.wsgiapp  # noqa: F401
import rest_framework  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache  # noqa: F401
from transformers.models.llama import modeling_llama  # noqa: F401
