from django.db import migrations

from holdfast.django.models_state import ReadOnlyModels
from holdfast.django.schema import HoldfastSchema


class Migration(migrations.Migration):
    dependencies: list[tuple[str, str]] = []
    operations = [HoldfastSchema(1), ReadOnlyModels()]
